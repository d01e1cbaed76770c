// Package orders is the server and the client of a shop.
package orders

import (
	"log/slog"

	"github.com/nearcall/nearcall"

	"github.com/nearcall/nearcall/examples/orders/orderspb"
	"github.com/nearcall/nearcall/examples/orders/shop"
)

// NewServer returns a server that serves s to callers that send the token.
func NewServer(s *shop.Shop, token string, log *slog.Logger, opts ...nearcall.ServerOption) *nearcall.Server {
	opts = append(opts,
		nearcall.MaxRecvMsgSize(64<<10),
		nearcall.ChainUnaryInterceptor(shop.LogCalls(log), shop.RequireToken(token)),
		nearcall.ChainStreamInterceptor(shop.LogStreams(log), shop.RequireTokenOnStreams(token)),
	)
	srv := nearcall.NewServer(opts...)
	orderspb.RegisterOrdersServer(srv, s)
	return srv
}
