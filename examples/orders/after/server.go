package orders

import (
	"log/slog"

	"github.com/nearcall/nearcall"

	"github.com/nearcall/nearcall/examples/orders/orderspb"
)

// NewServer returns a server that serves shop to callers that send the token.
func NewServer(shop *Shop, token string, log *slog.Logger, opts ...nearcall.ServerOption) *nearcall.Server {
	opts = append(opts,
		nearcall.MaxRecvMsgSize(64<<10),
		nearcall.ChainUnaryInterceptor(logCalls(log), requireToken(token)),
		nearcall.ChainStreamInterceptor(logStreams(log), requireTokenOnStreams(token)),
	)
	srv := nearcall.NewServer(opts...)
	orderspb.RegisterOrdersServer(srv, shop)
	return srv
}
