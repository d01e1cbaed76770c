package orders

import (
	"github.com/nearcall/nearcall"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/nearcall/nearcall/examples/orders/orderspb"
	"github.com/nearcall/nearcall/examples/orders/shop"
)

// A Client calls a shop.
type Client struct {
	orderspb.OrdersClient
	conn *nearcall.ClientConn
}

// Dial returns a client of the shop at target.
func Dial(target, token string, opts ...nearcall.DialOption) (*Client, error) {
	opts = append(opts,
		nearcall.WithTransportCredentials(insecure.NewCredentials()),
		nearcall.WithUnaryInterceptor(shop.SendToken(token)),
		nearcall.WithStreamInterceptor(shop.SendTokenOnStreams(token)),
	)
	conn, err := nearcall.NewClient(target, opts...)
	if err != nil {
		return nil, err
	}
	return &Client{OrdersClient: orderspb.NewOrdersClient(conn), conn: conn}, nil
}

// Close closes the connection.
func (c *Client) Close() error { return c.conn.Close() }
