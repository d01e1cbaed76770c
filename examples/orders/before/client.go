package orders

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/nearcall/nearcall/examples/orders/orderspb"
	"github.com/nearcall/nearcall/examples/orders/shop"
)

// A Client calls a shop.
type Client struct {
	orderspb.OrdersClient
	conn *grpc.ClientConn
}

// Dial returns a client of the shop at target.
func Dial(target, token string, opts ...grpc.DialOption) (*Client, error) {
	opts = append(opts,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithUnaryInterceptor(shop.SendToken(token)),
		grpc.WithStreamInterceptor(shop.SendTokenOnStreams(token)),
	)
	conn, err := grpc.NewClient(target, opts...)
	if err != nil {
		return nil, err
	}
	return &Client{OrdersClient: orderspb.NewOrdersClient(conn), conn: conn}, nil
}

// Close closes the connection.
func (c *Client) Close() error { return c.conn.Close() }
