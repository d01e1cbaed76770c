package test

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/link"
)

// A clientKind makes clients of a server that serves lis. The result makes a unary call.
type clientKind func(t *testing.T, srv *nearcall.Server, lis *bufconn.Listener) func(context.Context) error

var clientKinds = map[string]clientKind{
	"in process": func(t *testing.T, srv *nearcall.Server, _ *bufconn.Listener) func(context.Context) error {
		client, _ := connect(t, srv)
		return callWith(client)
	},
	"on the caller's goroutine": func(t *testing.T, srv *nearcall.Server, _ *bufconn.Listener) func(context.Context) error {
		client, _ := connect(t, srv)
		return func(context.Context) error { return callWith(client)(context.Background()) }
	},
	"over a connection": func(t *testing.T, _ *nearcall.Server, lis *bufconn.Listener) func(context.Context) error {
		return callWith(dial(t, "tcp:localhost:1", nearcall.WithContextDialer(through(lis))))
	},
	"ServeConn": func(t *testing.T, srv *nearcall.Server, _ *bufconn.Listener) func(context.Context) error {
		near, far := net.Pipe()
		served := serveConn(srv, far)
		t.Cleanup(func() {
			if err := <-served; err != nil {
				t.Errorf("ServeConn: %v", err)
			}
		})
		return callWith(dial(t, "tcp:localhost:1", nearcall.WithContextDialer(once(near))))
	},
	"WebSocket": func(t *testing.T, _ *nearcall.Server, lis *bufconn.Listener) func(context.Context) error {
		return callWith(dial(t, "ws://localhost/", nearcall.WithContextDialer(through(lis))))
	},
	"grpc-go": func(t *testing.T, _ *nearcall.Server, lis *bufconn.Listener) func(context.Context) error {
		return callWith(dialGRPC(t, lis))
	},
	"web HTTP/1": func(t *testing.T, _ *nearcall.Server, lis *bufconn.Listener) func(context.Context) error {
		return webClient(t, lis, 1)
	},
	"web HTTP/2": func(t *testing.T, _ *nearcall.Server, lis *bufconn.Listener) func(context.Context) error {
		return webClient(t, lis, 2)
	},
}

func callWith(client testpb.TestServiceClient) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := client.UnaryCall(ctx, &testpb.SimpleRequest{})
		return err
	}
}

func through(lis *bufconn.Listener) func(context.Context, string) (net.Conn, error) {
	return func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }
}

// webClient returns a client of Connect's protocol.
func webClient(t *testing.T, lis *bufconn.Listener, version int) func(context.Context) error {
	dialer := through(lis)
	transport := &http.Transport{
		Protocols:   new(http.Protocols),
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) { return dialer(ctx, address) },
	}
	transport.Protocols.SetHTTP1(version == 1)
	transport.Protocols.SetUnencryptedHTTP2(version == 2)
	t.Cleanup(transport.CloseIdleConnections)
	return func(ctx context.Context) error {
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://localhost/grpc.testing.TestService/UnaryCall", strings.NewReader("{}"))
		if err != nil {
			return err
		}
		r.Header.Set("Content-Type", "application/json")
		answer, err := transport.RoundTrip(r)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		if err == nil && answer.StatusCode == http.StatusServiceUnavailable {
			err = status.Error(codes.Unavailable, string(body))
		}
		return err
	}
}

// A shutdown is a server with one running call.
type shutdown struct {
	srv     *nearcall.Server
	handler context.Context // of the call
	release chan struct{}   // ends the call
	call    <-chan error
	served  <-chan error // what Serve returns
	begun   time.Time
}

// running returns a server with one running call. obeys says that the handler returns when its
// context is cancelled.
func running(t *testing.T, kind clientKind, obeys bool, opts ...nearcall.ServerOption) *shutdown {
	t.Helper()
	s := &shutdown{release: make(chan struct{})}
	handlers := make(chan context.Context, 1)
	s.srv = serve(t, echo{unary: func(ctx context.Context, _ *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		handlers <- ctx
		cancelled := ctx.Done()
		if !obeys {
			cancelled = nil
		}
		select {
		case <-s.release:
			return &testpb.SimpleResponse{}, nil
		case <-cancelled:
			return nil, ctx.Err()
		}
	}}, opts...)
	lis, served, call := bufconn.Listen(1<<16), make(chan error, 1), make(chan error, 1)
	go func() { served <- s.srv.Serve(lis) }()
	synctest.Wait()
	client := kind(t, s.srv, lis)
	ctx, cancel := context.WithCancel(context.Background()) // one that can be cancelled
	t.Cleanup(cancel)
	go func() { call <- client(ctx) }()
	s.call, s.served, s.handler = call, served, <-handlers
	s.begun = time.Now()
	return s
}

// down calls Shutdown with a context that ends after d.
func (s *shutdown) down(d time.Duration) <-chan error {
	done := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), d)
		defer cancel()
		done <- s.srv.Shutdown(ctx)
	}()
	return done
}

// want checks what Shutdown returns, and that it does so d after the beginning. Clients of HTTP/2 may
// take a second more, for what was sent to them.
func (s *shutdown) want(t *testing.T, done <-chan error, d time.Duration, want error) {
	t.Helper()
	if err := <-done; err != want {
		t.Errorf("Shutdown returns %v, want %v", err, want)
	}
	if took := time.Since(s.begun); took < d || took > d+time.Second {
		t.Errorf("Shutdown returned after %v, want %v", took, d)
	}
}

// wantEnd checks how the call and Serve end.
func (s *shutdown) wantEnd(t *testing.T, call codes.Code) {
	t.Helper()
	wantCode(t, <-s.call, call)
	if err := <-s.served; err != nil {
		t.Errorf("Serve: %v", err)
	}
}

func forEachClientKind(t *testing.T, test func(*testing.T, clientKind)) {
	for name, kind := range clientKinds {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { test(t, kind) })
		})
	}
}

// Shutdown returns nil when the running calls have ended, and refuses new ones. The end of its
// context is too late then, and so is Stop.
func TestShutdownWaitsForCalls(t *testing.T) {
	forEachClientKind(t, func(t *testing.T, kind clientKind) {
		s := running(t, kind, true)
		done := s.down(time.Minute)
		time.Sleep(20 * time.Second)
		if len(done)+len(s.served) > 0 || s.handler.Err() != nil {
			t.Errorf("Shutdown or Serve has returned while a call runs, or its context has ended: %v", s.handler.Err())
		}
		client, _ := connect(t, s.srv)
		wantCode(t, <-invoke(t.Context(), client), codes.Unavailable)
		close(s.release)
		s.want(t, done, 20*time.Second, nil)
		s.wantEnd(t, codes.OK)
		s.srv.Stop()
		s.srv.GracefulStop()
		for _, d := range []time.Duration{0, time.Minute} {
			if err := <-s.down(d); err != nil {
				t.Errorf("a later Shutdown returns %v", err)
			}
		}
		if err := s.srv.Serve(bufconn.Listen(1)); err != grpc.ErrServerStopped {
			t.Errorf("a later Serve returns %v", err)
		}
	})
}

// When the context of Shutdown ends, the contexts of the handlers are cancelled and callers get
// Unavailable.
func TestShutdownCutsCallsOffWhenItsContextEnds(t *testing.T) {
	for name, d := range map[string]time.Duration{"later": 20 * time.Second, "before": 0} {
		t.Run(name, func(t *testing.T) {
			forEachClientKind(t, func(t *testing.T, kind clientKind) {
				s := running(t, kind, true)
				s.want(t, s.down(d), d, context.DeadlineExceeded)
				if err := s.handler.Err(); err != context.Canceled {
					t.Errorf("the handler's context ends with %v", err)
				}
				s.wantEnd(t, codes.Unavailable)
				if err := <-s.down(0); err != context.DeadlineExceeded {
					t.Errorf("a later Shutdown returns %v", err)
				}
				if err := s.srv.Shutdown(context.Background()); err != grpc.ErrServerStopped {
					t.Errorf("a later Shutdown whose context does not end returns %v", err)
				}
			})
		})
	}
}

func TestShutdownReturnsTheErrorOfItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := running(t, clientKinds["in process"], true)
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(io.ErrUnexpectedEOF) })
		if err := s.srv.Shutdown(ctx); err != context.Canceled {
			t.Errorf("Shutdown returns %v", err)
		}
		s.wantEnd(t, codes.Unavailable)
	})
}

// After the end of its context Shutdown waits for handlers as Stop does: only if it is asked to.
func TestShutdownWaitsForHandlersWhenAsked(t *testing.T) {
	for name, waits := range map[string]bool{"default": false, "WaitForHandlers": true} {
		t.Run(name, func(t *testing.T) {
			forEachClientKind(t, func(t *testing.T, kind clientKind) {
				s := running(t, kind, false, nearcall.WaitForHandlers(waits))
				end := 5 * time.Second
				if waits {
					end = 20 * time.Second
				}
				time.AfterFunc(20*time.Second, func() { close(s.release) })
				s.want(t, s.down(5*time.Second), end, context.DeadlineExceeded)
				<-s.served
				<-s.release
				<-s.call
			})
		})
	}
}

// Stop cuts Shutdown and GracefulStop short. They return when the handlers have.
func TestStopCutsShutdownShort(t *testing.T) {
	forEachClientKind(t, func(t *testing.T, kind clientKind) {
		s := running(t, kind, false)
		done, graceful := s.down(time.Minute), make(chan struct{})
		go func() {
			s.srv.GracefulStop()
			close(graceful)
		}()
		time.Sleep(5 * time.Second)
		s.srv.Stop()
		if took := time.Since(s.begun); took > 6*time.Second {
			t.Errorf("Stop returned after %v", took)
		}
		synctest.Wait()
		if len(s.served) == 0 {
			t.Error("Serve has not returned after Stop")
		}
		if err := s.handler.Err(); err != context.Canceled {
			t.Errorf("the handler's context ends with %v", err)
		}
		time.Sleep(5 * time.Second)
		if len(done) > 0 || link.IsClosed(graceful) {
			t.Error("a graceful stop is over while a handler runs")
		}
		stopped := time.Since(s.begun)
		close(s.release)
		s.want(t, done, stopped, grpc.ErrServerStopped)
		<-graceful
		<-s.call
	})
}

// The context that ends first cuts all graceful stops short.
func TestShutdownsWithSeveralContexts(t *testing.T) {
	forEachClientKind(t, func(t *testing.T, kind clientKind) {
		s := running(t, kind, true)
		late, early, graceful := s.down(20*time.Second), s.down(5*time.Second), make(chan struct{})
		go func() {
			s.srv.GracefulStop()
			close(graceful)
		}()
		s.want(t, early, 5*time.Second, context.DeadlineExceeded)
		s.want(t, late, 5*time.Second, grpc.ErrServerStopped)
		<-graceful
		s.wantEnd(t, codes.Unavailable)
	})
}

// All that ask for a graceful stop wait for the same end.
func TestSeveralGracefulStopsWait(t *testing.T) {
	forEachClientKind(t, func(t *testing.T, kind clientKind) {
		s := running(t, kind, true)
		first, second, stops := s.down(time.Minute), s.down(time.Hour), make(chan struct{}, 2)
		for range 2 {
			go func() {
				s.srv.GracefulStop()
				stops <- struct{}{}
			}()
		}
		time.Sleep(30 * time.Second)
		if len(stops)+len(first)+len(second) > 0 {
			t.Error("a graceful stop is over while a call runs")
		}
		close(s.release)
		s.want(t, first, 30*time.Second, nil)
		s.want(t, second, 30*time.Second, nil)
		<-stops
		<-stops
		s.wantEnd(t, codes.OK)
	})
}

// GracefulStop waits for the handlers that a Stop has left.
func TestGracefulStopAfterStopWaitsForHandlers(t *testing.T) {
	forEachClientKind(t, func(t *testing.T, kind clientKind) {
		s := running(t, kind, false)
		s.srv.Stop()
		stopped := make(chan struct{})
		go func() {
			s.srv.GracefulStop()
			close(stopped)
		}()
		s.want(t, s.down(5*time.Second), 5*time.Second, context.DeadlineExceeded)
		if link.IsClosed(stopped) {
			t.Error("GracefulStop has returned while a handler runs")
		}
		close(s.release)
		<-stopped
		<-s.call
	})
}

// Shutdown ends the handshakes of clients that say nothing: after a second, or at the end of its
// context.
func TestShutdownDoesNotWaitForHandshakes(t *testing.T) {
	for d, want := range map[time.Duration]error{0: context.DeadlineExceeded, 500 * time.Millisecond: context.DeadlineExceeded, time.Minute: nil} {
		for said, first := range map[string]string{"nothing": "", "no settings of HTTP/2": preface} {
			t.Run(d.String()+"/"+said, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					lis := bufconn.Listen(1 << 16)
					srv := serve(t, echo{})
					start(t, srv, lis)
					conn := dialRaw(t, lis)
					defer conn.Close()
					if _, err := io.WriteString(conn, first); err != nil {
						t.Fatal(err)
					}
					synctest.Wait()
					s := &shutdown{srv: srv, begun: time.Now()}
					err := <-s.down(d)
					if took := time.Since(s.begun); err != want || took > min(d, 2*time.Second) {
						t.Errorf("Shutdown returns %v after %v, want %v", err, took, want)
					}
				})
			})
		}
	}
}

// A closings listener counts its connections until the server has closed them.
type closings struct {
	net.Listener
	open *atomic.Int32
}

func (l closings) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.open.Add(1)
	return &closingConn{conn, sync.OnceFunc(func() { l.open.Add(-1) })}, nil
}

type closingConn struct {
	net.Conn
	closing func()
}

func (c *closingConn) Close() error {
	c.closing()
	return c.Conn.Close()
}

// A server that has stopped has no connection, even if its clients leave theirs open.
func TestAStoppedServerHasNoConnections(t *testing.T) {
	for name, stop := range map[string]func(*shutdown){
		"Stop":                    func(s *shutdown) { s.srv.Stop() },
		"GracefulStop":            func(s *shutdown) { s.srv.GracefulStop() },
		"Shutdown":                func(s *shutdown) { <-s.down(time.Minute) },
		"Shutdown, ended already": func(s *shutdown) { <-s.down(0) },
	} {
		t.Run(name, func(t *testing.T) {
			forEachClientKind(t, func(t *testing.T, kind clientKind) {
				s, lis := &shutdown{srv: serve(t, echo{})}, bufconn.Listen(1<<16)
				var open atomic.Int32
				start(t, s.srv, closings{lis, &open})
				synctest.Wait()
				wantCode(t, kind(t, s.srv, lis)(t.Context()), codes.OK)
				synctest.Wait()
				begun := time.Now()
				stop(s)
				if took := time.Since(begun); took > time.Second {
					t.Errorf("it took %v", took)
				}
				synctest.Wait()
				if n := open.Load(); n != 0 {
					t.Errorf("%d connections are open", n)
				}
			})
		})
	}
}

// A nil context panics, as with net/http, and stops nothing.
func TestShutdownNeedsAContext(t *testing.T) {
	srv := serve(t, echo{})
	client, _ := connect(t, srv)
	func() {
		defer func() {
			if recover() == nil {
				t.Error("no panic")
			}
		}()
		var none context.Context
		_ = srv.Shutdown(none)
	}()
	wantCode(t, <-invoke(t.Context(), client), codes.OK)
}

// Over the networks of the system Shutdown ends calls as it does in process.
func TestShutdownOverNetworks(t *testing.T) {
	for _, network := range available(t, networks("tcp", "unix")...) {
		for name, want := range map[string]codes.Code{"graceful": codes.OK, "cut short": codes.Unavailable} {
			t.Run(network+"/"+name, func(t *testing.T) {
				hold(t)
				e, running, release := waiting()
				srv, lis := serve(t, e), listen(t, targetFor(t, network))
				served := make(chan error, 1)
				go func() { served <- srv.Serve(lis) }()
				call := invoke(t.Context(), dial(t, lis.Target(), over(network)...))
				outcome(t, "the handler's begin", running)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				done := make(chan error, 1)
				go func() { done <- srv.Shutdown(ctx) }()
				var wantErr error
				if want == codes.OK {
					close(release)
				} else {
					cancel()
					wantErr = context.Canceled
				}
				wantCode(t, outcome(t, "the call", call), want)
				if err := outcome(t, "Shutdown", done); err != wantErr {
					t.Errorf("Shutdown returns %v", err)
				}
				if err := outcome(t, "Serve", served); err != nil && err != grpc.ErrServerStopped {
					t.Errorf("Serve returns %v", err)
				}
			})
		}
	}
}
