// Package orders is the server and the client of a shop.
package orders

import (
	"log/slog"

	"google.golang.org/grpc"

	"github.com/nearcall/nearcall/examples/orders/orderspb"
	"github.com/nearcall/nearcall/examples/orders/shop"
)

// NewServer returns a server that serves s to callers that send the token.
func NewServer(s *shop.Shop, token string, log *slog.Logger, opts ...grpc.ServerOption) *grpc.Server {
	opts = append(opts,
		grpc.MaxRecvMsgSize(64<<10),
		grpc.ChainUnaryInterceptor(shop.LogCalls(log), shop.RequireToken(token)),
		grpc.ChainStreamInterceptor(shop.LogStreams(log), shop.RequireTokenOnStreams(token)),
	)
	srv := grpc.NewServer(opts...)
	orderspb.RegisterOrdersServer(srv, s)
	return srv
}
