package client

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/stats"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/testing/callservice"
)

// A panicking stats handler panics at the nth event of a type, once.
type panicking struct {
	event string
	nth   int
	leave func() // ends the goroutine; nil to panic
}

func (p *panicking) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (p *panicking) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (p *panicking) HandleConn(context.Context, stats.ConnStats)                       {}
func (p *panicking) HandleRPC(_ context.Context, e stats.RPCStats) {
	if fmt.Sprintf("%T", e) == p.event {
		if p.nth--; p.nth == 0 {
			if p.leave != nil {
				p.leave()
			}
			panic("stats: " + p.event)
		}
	}
}

// panics runs f, and callservice.Reports whether it panicked.
func panics(f func()) (panicked bool) {
	defer func() { panicked = recover() != nil }()
	f()
	return false
}

// A program may recover from the panic of its stats handler. Then the call must not keep its place
// among those that the server runs.
func TestACallWhoseStatsHandlerPanicsGivesItsPlaceBack(t *testing.T) {
	for _, event := range []string{"*stats.Begin", "*stats.OutHeader", "*stats.OutPayload", "*stats.InPayload", "*stats.InTrailer", "*stats.End"} {
		t.Run(event, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &panicking{event, 1, nil}
				b := start(t, handlers{}, func(c *options.Server) { c.SetMaxStreams(1) }, func(c *clientSetup) { c.ClientStats = []stats.Handler{p} })
				ctx, cancel := context.WithCancel(t.Context())
				if !panics(func() {
					s, err := b.NewStream(ctx, streamDesc, streamMethod)
					if err != nil {
						t.Fatal(err)
					}
					_ = s.SendMsg(wrapperspb.Bytes([]byte("x")))
					_ = s.CloseSend()
					for range 2 {
						_ = s.RecvMsg(new(msg))
					}
				}) {
					t.Error("the stats handler was not told")
				}
				if event != "*stats.OutHeader" { // of that call nobody has a stream to end it with
					cancel()
				}
				defer cancel()
				later, stop := context.WithTimeout(t.Context(), time.Minute)
				defer stop()
				_, err := b.call(later)
				callservice.WantCode(t, err, codes.OK)
			})
		})
	}
}

// A panic or Goexit of the stats handler, in Header or RecvMsg, does not keep others from receiving.
func TestOthersReceiveAfterAStatsHandlerHasEndedAGoroutine(t *testing.T) {
	for what, leave := range map[string]func(){"panic": nil, "Goexit": runtime.Goexit} {
		for who, receive := range map[string]func(grpc.ClientStream){
			"Header":  func(s grpc.ClientStream) { _, _ = s.Header() },
			"RecvMsg": func(s grpc.ClientStream) { _ = s.RecvMsg(new(msg)) },
		} {
			t.Run(what+"/"+who, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					p := &panicking{"*stats.InHeader", 1, leave}
					b := start(t, handlers{}, nil, func(c *clientSetup) { c.ClientStats = []stats.Handler{p} })
					s, err := b.NewStream(t.Context(), streamDesc, streamMethod)
					if err != nil {
						t.Fatal(err)
					}
					_ = s.SendMsg(wrapperspb.Bytes([]byte("x")))
					_ = s.CloseSend()
					gone := make(chan struct{})
					go func() {
						defer close(gone)
						defer func() { _ = recover() }()
						receive(s)
						t.Error("the stats handler was not told")
					}()
					<-gone
					for err = nil; err == nil; {
						err = s.RecvMsg(new(msg))
					}
					_, _ = s.Header()
					s.Trailer()
				})
			})
		}
	}
}

// A goroutine that waits for a retry learns that it has panicked.
func TestAPanicInARetryEndsTheCall(t *testing.T) {
	for _, event := range []string{"*stats.Begin", "*stats.OutHeader", "*stats.End"} {
		t.Run(event, func(t *testing.T) {
			p := &panicking{event, 2, nil}
			if event == "*stats.End" {
				p.nth = 1 // of the first attempt
			}
			client, _ := retrying(t, handlers{}, false, func(cc *clientSetup) { cc.ClientStats = []stats.Handler{p} }, &doomed{sends: 1})
			s, err := client.NewStream(t.Context(), streamDesc, streamMethod)
			if err != nil {
				t.Fatal(err)
			}
			request := wrapperspb.Bytes([]byte("x"))
			if err := s.SendMsg(request); err != nil {
				t.Fatal(err)
			}
			if !panics(func() { _ = s.SendMsg(request) }) {
				t.Error("the call was not retried")
			}
			callservice.WantCode(t, s.RecvMsg(new(msg)), codes.Internal)
		})
	}
}
