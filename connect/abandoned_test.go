package nearconnect_test

import (
	"context"
	"testing"
	"time"

	"connectrpc.com/connect/v2"

	"github.com/nearcall/nearcall"
	nearconnect "github.com/nearcall/nearcall/connect"
	"github.com/nearcall/nearcall/connect/internal/echopb"
	"github.com/nearcall/nearcall/connect/internal/echopb/echopbconnect"
	"github.com/nearcall/nearcall/internal/testing/leak"
	"github.com/nearcall/nearcall/internal/testing/looptest"
)

// A stream fails if it is opened by a task that is abandoned.
func TestNobodyWaitsForATaskThatOpensAStream(t *testing.T) {
	looptest.Abandon(t, func() {
		h := looptest.NewBoundHost()
		began, ended := make(chan struct{}, 1), make(chan error, 1)
		server := connect.NewServer()
		echopbconnect.RegisterEchoHandler(server, waiting(began, ended))
		srv := nearcall.NewServer(nearcall.MaxConcurrentStreams(1))
		nearconnect.Register(srv, server)
		c := clientOf(connectTo(t, "inproc", srv))
		first, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { _, _ = c.Unary(first, new(echopb.Message)) }()
		<-began
		streams := make(chan echopbconnect.EchoChatClientStream, 1)
		_ = h.Go(func(ctx context.Context) {
			if s, err := c.Chat(ctx); err == nil {
				streams <- s
				_, _ = s.Receive()
			}
		})
		s := <-streams
		h.Settle()
		h.Leave()
		h.Tell()
		leak.Within(t, time.Minute, "the stream fails", func() { wantCode(t, s.Send(new(echopb.Message)), connect.CodeCanceled) })
		cancel()
	})
}
