package orders

import (
	"log/slog"

	"google.golang.org/grpc"

	"github.com/nearcall/nearcall/examples/orders/orderspb"
)

// NewServer returns a server that serves shop to callers that send the token.
func NewServer(shop *Shop, token string, log *slog.Logger, opts ...grpc.ServerOption) *grpc.Server {
	opts = append(opts,
		grpc.MaxRecvMsgSize(64<<10),
		grpc.ChainUnaryInterceptor(logCalls(log), requireToken(token)),
		grpc.ChainStreamInterceptor(logStreams(log), requireTokenOnStreams(token)),
	)
	srv := grpc.NewServer(opts...)
	orderspb.RegisterOrdersServer(srv, shop)
	return srv
}
