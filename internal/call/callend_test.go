package call

import (
	"context"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/nearcall/nearcall/internal/link"
)

// A handler may have a goroutine that still receives when the handler has returned.
// Whatever that goroutine does, the call keeps the handler's status.
func TestReturnedHandlerDoesNotChangeStatus(t *testing.T) {
	for name, stray := range map[string]func(grpc.ServerStream){
		"receives":     func(ss grpc.ServerStream) { _ = ss.RecvMsg(new(message)) },
		"sends":        func(ss grpc.ServerStream) { _ = ss.SendMsg(new(message)) },
		"sends header": func(ss grpc.ServerStream) { _ = ss.SendHeader(metadata.Pairs("late", "1")) },
		"sets trailer": func(ss grpc.ServerStream) { ss.SetTrailer(metadata.Pairs("late", "1")) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := start(t, handlers{stream: func(ss grpc.ServerStream) error {
					go func() {
						<-ss.Context().Done()
						stray(ss)
					}()
					ss.SetTrailer(metadata.Pairs("t", "1"))
					return ss.SendMsg(wrapperspb.Bytes([]byte("reply")))
				}}, nil, nil)
				var r reports
				s, err := b.NewStream(t.Context(), streamDesc, streamMethod, r.options()...)
				if err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				if len(r.ends) != 0 || s.Context().Err() != nil {
					t.Errorf("the call is over (%v, context %v) before its messages were received", r.ends, s.Context().Err())
				}
				m := new(message)
				if err := s.RecvMsg(m); err != nil || string(m.Value) != "reply" {
					t.Errorf("%v, %v", m, err)
				}
				if err := s.RecvMsg(m); err != io.EOF {
					t.Errorf("%v, want EOF", err)
				}
				if len(r.ends) != 1 || r.ends[0] != nil || show(r.trailer) != `map["t":["1"]]` {
					t.Errorf("the options are told of the end %v and the trailer %s", r.ends, show(r.trailer))
				}
			})
		})
	}
}

// tagger is a stats handler that adds to the metadata of calls.
type tagger struct{ key string }

func (g tagger) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context {
	return metadata.AppendToOutgoingContext(ctx, g.key, "tagged")
}
func (tagger) HandleRPC(context.Context, stats.RPCStats)                         {}
func (tagger) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (tagger) HandleConn(context.Context, stats.ConnStats)                       {}

// A stats handler's metadata is sent together with the user's. If it is invalid, the call
// fails. This is the same for unary calls and streams.
func TestMetadataThatAStatsHandlerAdds(t *testing.T) {
	for key, want := range map[string]codes.Code{"trace": codes.OK, "not a key": codes.Internal} {
		var unary, stream metadata.MD
		b := start(t, handlers{
			unary: func(ctx context.Context, in *message) (*message, error) {
				unary, _ = metadata.FromIncomingContext(ctx)
				return in, nil
			},
			stream: func(ss grpc.ServerStream) error {
				stream, _ = metadata.FromIncomingContext(ss.Context())
				return nil
			},
		}, nil, func(c *ClientConfig) { c.Stats = []stats.Handler{tagger{key}} })
		ctx := metadata.AppendToOutgoingContext(t.Context(), "user", "1")
		_, err := b.call(ctx)
		if status.Code(err) != want {
			t.Errorf("%q: unary: %v, want %v", key, err, want)
		}
		if err == nil && (len(unary["user"]) != 1 || len(unary["trace"]) != 1) {
			t.Errorf("%q: unary: the handler sees %s", key, show(unary))
		}
		s, err := b.NewStream(ctx, streamDesc, streamMethod)
		if err == nil {
			if err = s.RecvMsg(new(message)); err == io.EOF {
				err = nil
			}
		}
		if status.Code(err) != want {
			t.Errorf("%q: stream: %v, want %v", key, err, want)
		}
		if err == nil && (len(stream["user"]) != 1 || len(stream["trace"]) != 1) {
			t.Errorf("%q: stream: the handler sees %s", key, show(stream))
		}
	}
}

// breaking is a session whose streams are aborted as soon as they are open.
type breaking struct{ link.Session }

func (b breaking) NewStream(ctx context.Context, o *link.CallHeader) (link.Stream, error) {
	s, err := b.Session.NewStream(ctx, o)
	if err == nil {
		s.Abort(errStopped)
	}
	return s, err
}

func TestAStreamThatBreaksAtOnceLetsGoOfItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, handlers{}, nil, func(c *ClientConfig) { c.Sessions = always{breaking{c.Sessions.(always).session}} })
		waiting := 0
		base, cancel := context.WithCancel(t.Context())
		defer cancel()
		s, err := b.NewStream(afterFuncs{base, &waiting}, streamDesc, streamMethod)
		if err != nil {
			t.Fatal(err)
		}
		wantCode(t, s.RecvMsg(new(message)), codes.Unavailable)
		if waiting != 0 {
			t.Errorf("%d functions still wait for the context of a call that is over", waiting)
		}
	})
}

func TestAStreamLetsGoOfItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, handlers{}, nil, nil)
		waiting := 0
		base, cancel := context.WithCancel(t.Context())
		defer cancel()
		s, err := b.NewStream(afterFuncs{base, &waiting}, streamDesc, streamMethod)
		if err != nil {
			t.Fatal(err)
		}
		if waiting != 1 {
			t.Errorf("%d wait for the context of a stream", waiting)
		}
		_ = s.CloseSend()
		if err := s.RecvMsg(new(message)); err != io.EOF {
			t.Fatal(err)
		}
		if waiting != 0 {
			t.Errorf("%d functions still wait for the context of a call that is over", waiting)
		}
	})
}

// When Invoke returns, the results for its options are set.
func TestOnFinishIsCalledBeforeAUnaryCallReturns(t *testing.T) {
	for name, cc := range map[string]func(*ClientConfig){
		"one shot": nil,
		"streamed": func(c *ClientConfig) { c.Sessions = always{streamed{c.Sessions.(always).session}} },
	} {
		t.Run(name, func(t *testing.T) {
			b := start(t, handlers{unary: func(ctx context.Context, in *message) (*message, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			}}, nil, cc)
			var late atomic.Int32
			var all sync.WaitGroup
			for range 4 {
				all.Go(func() {
					for range 1000 {
						ctx, cancel := context.WithCancel(context.Background())
						var ends atomic.Int32
						go cancel()
						_, err := b.call(ctx, grpc.OnFinish(func(error) { ends.Add(1) }))
						wantCode(t, err, codes.Canceled)
						if ends.Load() != 1 {
							late.Add(1)
						}
					}
				})
			}
			all.Wait()
			if n := late.Load(); n > 0 {
				t.Errorf("%d calls of 4000 returned before OnFinish was called", n)
			}
		})
	}
}

// lingering is a server's stats handler that delays the end of calls on the server after
// they have ended for their callers.
type lingering struct {
	tagger
	release chan struct{}
}

func (l lingering) HandleRPC(_ context.Context, s stats.RPCStats) {
	if _, ok := s.(*stats.End); ok {
		<-l.release
	}
}

func TestStoppingAServerDoesNotChangeHowACallEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		b := start(t, handlers{stream: func(ss grpc.ServerStream) error {
			ss.SetTrailer(metadata.Pairs("t", "1"))
			return nil
		}}, func(c *ServerConfig) { c.Stats = []stats.Handler{lingering{tagger{"k"}, release}} }, nil)
		defer close(release)
		var r reports
		s, err := b.NewStream(t.Context(), streamDesc, streamMethod, r.options()...)
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // the handler has returned
		b.server.Stop()
		if err := s.RecvMsg(new(message)); err != io.EOF {
			t.Errorf("%v, want EOF", err)
		}
		if len(r.ends) != 1 || r.ends[0] != nil || show(r.trailer) != `map["content-type":["application/grpc"] "t":["1"]]` {
			t.Errorf("the options are told of the end %v and the trailer %s", r.ends, show(r.trailer))
		}
	})
}
