package test

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/keepalive"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/testing/leak"
	"github.com/nearcall/nearcall/internal/wire"
)

// stubborn is a service whose streams end when release is called, not when their
// callers cancel. most is the largest number of streams that ran concurrently.
func stubborn() (e echo, most *atomic.Int64, release func()) {
	end := make(chan struct{})
	var running atomic.Int64
	most = new(atomic.Int64)
	return echo{bidi: func(bidi) error {
		n := running.Add(1)
		defer running.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		<-end
		return nil
	}}, most, sync.OnceFunc(func() { close(end) })
}

// flood opens n calls on one connection and, if leave is set, resets each at once. It
// returns how many the server has reset as unprocessed.
func flood(t *testing.T, lis net.Listener, n int, leave bool) (refused int64, s *stranger) {
	t.Helper()
	s = meet(t, lis)
	_ = s.conn.SetDeadline(time.Now().Add(time.Minute))
	var resets atomic.Int64
	pong := make(chan struct{})
	go func() {
		_ = s.frames(func(f wire.Frame) bool {
			if f.Kind == wire.KindReset && f.Body[0] == byte(wire.ResetUnprocessed) {
				resets.Add(1)
			}
			if f.Kind == wire.KindPong {
				close(pong)
			}
			return f.Kind == wire.KindPong
		})
	}()
	s.write(greeting(wire.MinWindow))
	for i := 0; i < n; i += 1000 {
		var b []byte
		for range min(1000, n-i) {
			open, id := s.call("FullDuplexCall", nil, 0, nil)
			b = append(b, open...)
			if leave {
				b = wire.AppendReset(b, id, wire.ResetCancelled, "")
			}
		}
		s.write(b)
	}
	s.write(wire.AppendPing(nil, wire.KindPing, [8]byte{}))
	select {
	case <-pong:
	case <-time.After(time.Minute):
		t.Error("the server has not read all of it")
	}
	return resets.Load(), s
}

// manyCalls returns 100,000, or a tenth of that with -short.
func manyCalls() int {
	if testing.Short() {
		return 10_000
	}
	return 100_000
}

func TestAPeerThatOpens100000CallsWithALimit(t *testing.T) {
	hold(t)
	const limit = 100
	calls := manyCalls()
	service, most, release := stubborn()
	lis := listenFor(t, "tcp", service, nearcall.MaxConcurrentStreams(limit))
	defer good(t, lis)()
	defer release()
	refused, _ := flood(t, lis, calls, false)
	if refused != int64(calls-limit) || most.Load() > limit {
		t.Errorf("%d calls were refused, and %d ran at a time", refused, most.Load())
	}
	release()
	goesOn(t, lis)
}

// The peer resets each call as soon as it has opened it. Few calls are open at a time,
// but their handlers keep running.
func TestAPeerThatOpensAndLeaves100000CallsWithALimit(t *testing.T) {
	hold(t)
	const limit = 100
	calls := manyCalls()
	service, most, release := stubborn()
	lis := listenFor(t, "tcp", service, nearcall.MaxConcurrentStreams(limit))
	defer good(t, lis)()
	defer release()
	refused, _ := flood(t, lis, calls, true) // the server reads all of it, while no handler returns
	leak.Eventually(t, "as many handlers run as calls may", func() bool { return most.Load() == limit })
	goesOn(t, lis) // other clients are served
	release()
	if refused > 0 || most.Load() > limit {
		t.Errorf("%d calls are answered, and %d handlers ran at a time, where %d calls may", refused, most.Load(), limit)
	}
	goesOn(t, lis)
}

// Handlers of calls that were reset end because their contexts are cancelled.
func TestAPeerThatOpensAndLeavesManyCalls(t *testing.T) {
	hold(t)
	var running atomic.Int64
	lis := listenFor(t, "tcp", echo{bidi: func(s bidi) error {
		running.Add(1)
		defer running.Add(-1)
		_, err := s.Recv()
		return err
	}})
	defer good(t, lis)()
	before := leak.Heap()
	_, _ = flood(t, lis, 10_000, true)
	leak.Eventually(t, "all handlers return", func() bool { return running.Load() == 0 })
	if now := leak.Heap(); now > before+leak.Slack {
		t.Errorf("the connection holds %d bytes", now-before)
	}
	goesOn(t, lis)
}

// Calls are not limited here. When the peer disconnects all resources are released.
func TestAPeerThatKeepsThousandsOfCallsOpen(t *testing.T) {
	hold(t)
	const calls = 3000 // the race detector supports 8128 goroutines
	var running atomic.Int64
	lis := listenFor(t, "tcp", echo{bidi: func(s bidi) error {
		running.Add(1)
		defer running.Add(-1)
		_, err := s.Recv()
		return err
	}}, nearcall.MaxConcurrentStreams(0))
	defer good(t, lis)()
	refused, s := flood(t, lis, calls, false)
	leak.Eventually(t, "all handlers run", func() bool { return running.Load() == calls })
	if refused > 0 {
		t.Errorf("%d calls were refused", refused)
	}
	_ = s.conn.Close()
	leak.Eventually(t, "all handlers return", func() bool { return running.Load() == 0 })
	goesOn(t, lis)
}

// A peer that never reads blocks handlers that send to it, no matter how much credit it
// grants. Keepalive disconnects it.
func TestAPeerThatReadsNothing(t *testing.T) {
	for name, window := range map[string]int64{"a window of 64 KiB": wire.MinWindow, "a window without end": 1 << 40} {
		t.Run(name, func(t *testing.T) {
			hold(t)
			var sent atomic.Int64
			ended := make(chan error, 1)
			lis := listenFor(t, "tcp", echo{bidi: func(s bidi) error {
				m := &testpb.StreamingOutputCallResponse{Payload: payload(32 << 10)}
				for {
					if err := s.Send(m); err != nil {
						ended <- s.Context().Err()
						return err
					}
					if sent.Add(1) > 10_000 { // 320 MB
						return nil
					}
				}
			}}, nearcall.KeepaliveParams(keepalive.ServerParameters{Time: time.Second, Timeout: time.Second}))
			defer good(t, lis)()
			s := meet(t, lis)
			before := leak.Heap()
			open, _ := s.call("FullDuplexCall", nil, 0, nil)
			s.write(greeting(window), open)
			time.Sleep(500 * time.Millisecond)
			if now := leak.Heap(); now > before+32<<20 {
				t.Errorf("%d bytes are in use for a peer that does not read, after %d messages", now-before, sent.Load())
			}
			select {
			case err := <-ended:
				if err != context.Canceled {
					t.Errorf("the handler's context: %v", err)
				}
			case <-time.After(10 * time.Second):
				t.Error("the handler still sends")
				_ = s.conn.Close()
			}
			goesOn(t, lis)
		})
	}
}
