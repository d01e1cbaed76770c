package server

import (
	"context"
	"io"
	"strings"
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

	"github.com/nearcall/nearcall/internal/call"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/testing/callservice"
)

// A handler may have a goroutine that still receives when the handler has returned.
// Whatever that goroutine does, the call keeps the handler's status.
func TestReturnedHandlerDoesNotChangeStatus(t *testing.T) {
	for name, stray := range map[string]func(grpc.ServerStream){
		"receives":     func(ss grpc.ServerStream) { _ = ss.RecvMsg(new(msg)) },
		"sends":        func(ss grpc.ServerStream) { _ = ss.SendMsg(new(msg)) },
		"sends header": func(ss grpc.ServerStream) { _ = ss.SendHeader(metadata.Pairs("late", "1")) },
		"sets trailer": func(ss grpc.ServerStream) { ss.SetTrailer(metadata.Pairs("late", "1")) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := start(t, handlers{Stream: func(ss grpc.ServerStream) error {
					go func() {
						<-ss.Context().Done()
						stray(ss)
					}()
					ss.SetTrailer(metadata.Pairs("t", "1"))
					return ss.SendMsg(wrapperspb.Bytes([]byte("reply")))
				}}, nil, nil)
				var r callservice.Reports
				s, err := b.NewStream(t.Context(), streamDesc, streamMethod, r.Options()...)
				if err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				if len(r.Ends) != 0 || s.Context().Err() != nil {
					t.Errorf("the call is over (%v, context %v) before its messages were received", r.Ends, s.Context().Err())
				}
				m := new(msg)
				if err := s.RecvMsg(m); err != nil || string(m.Value) != "reply" {
					t.Errorf("%v, %v", m, err)
				}
				if err := s.RecvMsg(m); err != io.EOF {
					t.Errorf("%v, want EOF", err)
				}
				if len(r.Ends) != 1 || r.Ends[0] != nil || callservice.Show(r.Trailer) != `map["t":["1"]]` {
					t.Errorf("the options are told of the end %v and the trailer %s", r.Ends, callservice.Show(r.Trailer))
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

func TestMetadataOfAStatsHandlerThatIsInvalid(t *testing.T) {
	b := start(t, handlers{}, nil, func(c *clientSetup) { c.ClientStats = []stats.Handler{tagger{"not a key"}} })
	_, unary := b.call(t.Context())
	_, stream := b.NewStream(t.Context(), streamDesc, streamMethod)
	if status.Code(unary) != codes.Internal || status.Code(stream) != codes.Internal {
		t.Errorf("%v, %v", unary, stream)
	}
}

func TestAStatusQuotesTheBeginningOfALongName(t *testing.T) {
	err := start(t, handlers{}, nil, nil).Invoke(t.Context(), unaryMethod+strings.Repeat("a", 300), wrapperspb.Bytes(nil), new(msg))
	if m := status.Convert(err).Message(); len(m) > 350 || !strings.Contains(m, "aaa... for service") {
		t.Errorf("%v", err)
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
		b := start(t, handlers{}, nil, func(c *clientSetup) {
			c.Sessions = callservice.Always{Session: breaking{c.Sessions.(callservice.Always).Session}}
		})
		waiting := 0
		base, cancel := context.WithCancel(t.Context())
		defer cancel()
		s, err := b.NewStream(afterFuncs{base, &waiting}, streamDesc, streamMethod)
		if err != nil {
			t.Fatal(err)
		}
		callservice.WantCode(t, s.RecvMsg(new(msg)), codes.Unavailable)
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
		if err := s.RecvMsg(new(msg)); err != io.EOF {
			t.Fatal(err)
		}
		if waiting != 0 {
			t.Errorf("%d functions still wait for the context of a call that is over", waiting)
		}
	})
}

// When Invoke returns, the results for its options are set.
func TestOnFinishIsCalledBeforeAUnaryCallReturns(t *testing.T) {
	for name, cc := range map[string]func(*clientSetup){
		"one shot": nil,
		"streamed": func(c *clientSetup) {
			c.Sessions = callservice.Always{Session: callservice.Streamed{Session: c.Sessions.(callservice.Always).Session}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := start(t, handlers{Unary: func(ctx context.Context, in *msg) (*msg, error) {
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
						callservice.WantCode(t, err, codes.Canceled)
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

// A detaching stats handler's contexts have nothing of the call's.
type detaching struct{ tagger }

func (detaching) TagRPC(context.Context, *stats.RPCTagInfo) context.Context {
	return context.Background()
}

// A PreparedMsg must be encoded for the stream that sends it.
func TestAStreamIsKnownWithoutItsContext(t *testing.T) {
	b := start(t, handlers{Stream: func(ss grpc.ServerStream) error {
		if !call.IsStream(ss) {
			t.Error("a handler's stream is taken for grpc-go's")
		}
		return nil
	}}, func(c *options.Server) { c.ServerStats = append(c.ServerStats, detaching{}) }, nil)
	s, err := b.NewStream(t.Context(), streamDesc, streamMethod)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.RecvMsg(new(msg)); err != io.EOF {
		t.Error(err)
	}
}
