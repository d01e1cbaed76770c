package server

import (
	"context"
	"runtime"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"github.com/nearcall/nearcall/internal/codec"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/testing/callservice"
)

// wayward is a codec whose Marshal calls leave, which panics or calls Goexit.
type wayward struct{ leave func() }

func (wayward) Name() string { return "wayward" }

func (w wayward) Marshal(any) ([]byte, error) {
	w.leave()
	return nil, nil
}

func (wayward) Unmarshal(b []byte, v any) error {
	v.(*msg).Value = append([]byte(nil), b...)
	return nil
}

// overStreams makes the client's unary calls use streams.
func overStreams(c *clientSetup) {
	c.Sessions = callservice.Always{Session: callservice.Streamed{Session: c.Sessions.(callservice.Always).Session}}
}

// TestACodecThatLeavesWithAReplyEndsTheCall: a panic or Goexit of a codec that encodes the
// reply has the same effect as one of the handler.
func TestACodecThatLeavesWithAReplyEndsTheCall(t *testing.T) {
	for name, c := range map[string]struct {
		leave  func()
		server func(*options.Server)
		client func(*clientSetup)
		panics bool
	}{
		"Goexit on a worker":     {runtime.Goexit, onWorkers, nil, false},
		"Goexit over a stream":   {runtime.Goexit, onWorkers, overStreams, false},
		"a panic, inline":        {func() { panic("marshal") }, func(*options.Server) {}, nil, true},
		"a panic, seen by stats": {func() { panic("marshal") }, func(c *options.Server) { c.ServerStats = append(c.ServerStats, tagger{}) }, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var derived context.Context
				b := start(t, handlers{Unary: func(ctx context.Context, in *msg) (*msg, error) {
					var cancel context.CancelFunc
					derived, cancel = context.WithCancel(ctx)
					t.Cleanup(cancel)
					return in, nil
				}}, c.server, c.client)
				b.server.forced = codec.WrapV1(wayward{func() {
					if derived != nil { // stats compute the request's size
						c.leave()
					}
				}})
				func() {
					defer func() {
						if r := recover(); (r != nil) != c.panics {
							t.Errorf("the caller recovers %v", r)
						}
					}()
					_, err := b.call(context.Background())
					callservice.WantCode(t, err, codes.Internal)
				}()
				synctest.Wait()
				if derived.Err() != context.Canceled {
					t.Errorf("a context derived from the handler's has ended with %v", derived.Err())
				}
				b.server.GracefulStop() // returns: no call runs
			})
		})
	}
}

// TestNoReplyOvertakesItsHeader: a header that another goroutine sends while the handler
// returns is refused, or the caller gets it.
func TestNoReplyOvertakesItsHeader(t *testing.T) {
	for name, client := range map[string]func(*clientSetup){"at once": nil, "over a stream": overStreams} {
		t.Run(name, func(t *testing.T) {
			sent := make(chan error, 1)
			b := start(t, handlers{Unary: func(ctx context.Context, in *msg) (*msg, error) {
				go func() { sent <- grpc.SendHeader(ctx, metadata.Pairs("k", "v")) }()
				runtime.Gosched()
				return in, nil
			}}, nil, client)
			for range 3000 {
				var header metadata.MD
				_, err := b.call(t.Context(), grpc.Header(&header))
				callservice.WantCode(t, err, codes.OK)
				if err := <-sent; header == nil || err == nil && header["k"] == nil {
					t.Fatalf("SendHeader returned %v, and the header is %v", err, header)
				}
			}
		})
	}
}
