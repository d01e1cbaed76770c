package client

import (
	"context"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/testing/callservice"
)

// OnFinish may call the stream's Header, Trailer and Context, whichever method has received
// the end.
func TestOnFinishAsksTheStream(t *testing.T) {
	for name, way := range ways {
		for finder, find := range map[string]func(grpc.ClientStream){
			"RecvMsg": func(cs grpc.ClientStream) { _ = cs.RecvMsg(new(msg)) },
			"Header":  func(cs grpc.ClientStream) { _, _ = cs.Header() },
			"SendMsg": func(cs grpc.ClientStream) { _ = cs.SendMsg(new(msg)) },
			"nobody":  func(grpc.ClientStream) {},
		} {
			t.Run(name+", "+finder, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					b := start(t, handlers{Stream: func(ss grpc.ServerStream) error {
						<-ss.Context().Done()
						return nil
					}}, nil, nil)
					cfg := b.cfg
					cfg.Sessions = callservice.Always{Session: way(b.session)}
					ctx, cancel := context.WithCancel(t.Context())
					var cs grpc.ClientStream
					finished := make(chan error, 1)
					cs, err := New(b.opts, cfg).NewStream(ctx, streamDesc, streamMethod, grpc.OnFinish(func(err error) {
						if md, err := cs.Header(); md != nil || err != nil {
							t.Errorf("Header: %v, %v", md, err)
						}
						cs.Trailer()
						if !link.IsClosed(ctx.Done()) {
							t.Error("the call has ended before its context")
						}
						cs.Context()
						finished <- err
					}))
					if err != nil {
						t.Fatal(err)
					}
					go func() {
						synctest.Wait()
						cancel()
					}()
					find(cs)
					callservice.WantCode(t, <-finished, codes.Canceled)
				})
			})
		}
	}
}
