package test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/mux"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/wire"
)

// A place is what a client dials: a server, or a peer that says hello and leaves.
type place struct {
	mu     sync.Mutex
	leave  func(*mux.Session) // nil if there is a server
	answer func(net.Conn)     // in place of both; may be nil
	lis    *bufconn.Listener
	begun  time.Time
	dials  []time.Duration // times of all dials
}

func (p *place) dial(ctx context.Context, _ string) (net.Conn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dials = append(p.dials, time.Since(p.begun))
	if len(p.dials) > 100 {
		return nil, errors.New("that is too often") // prevents an endless loop in which no time passes
	}
	if p.leave == nil && p.answer == nil {
		return p.lis.DialContext(ctx)
	}
	near, far := net.Pipe()
	if p.answer != nil {
		go p.answer(far)
		return near, nil
	}
	leave := p.leave
	go func() {
		(&stranger{conn: far, in: bufio.NewReaderSize(far, len(wire.Question))}).answer()
		s := mux.New(far, mux.Options{Config: &options.NewServer(nil).Connections, HelloTime: time.Minute, Name: "client"})
		s.Start(leaver{})
		leave(s)
	}()
	return near, nil
}

// A leaver accepts the session of a server that is about to leave. It refuses the calls that are
// made before the client knows.
type leaver struct{ link.Acceptor }

func (leaver) HandleStream(link.Stream, *link.CallHeader) error {
	return link.Unprocessed{Err: errors.New("the server is about to leave")}
}

func (leaver) Closed(error) {}

func (leaver) Gone() {}

// dialled returns the times of all dials.
func (p *place) dialled() []time.Duration {
	synctest.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.dials)
}

// opens starts a server of e at p.
func (p *place) opens(t *testing.T, e echo, opts ...nearcall.ServerOption) *nearcall.Server {
	srv, lis := serve(t, e, opts...), bufconn.Listen(1<<16)
	start(t, srv, lis)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leave, p.lis = nil, lis
	return srv
}

// at returns a place and a connection that dials it, with a backoff of 1, 2, 4, 8 and
// then 10 seconds.
func at(t *testing.T, leave func(*mux.Session), opts ...nearcall.DialOption) (*place, *nearcall.ClientConn) {
	p := &place{leave: leave, begun: time.Now()}
	conn, err := nearcall.NewClient("tcp:place:0", append(opts, nearcall.WithTransportCredentials(insecure.NewCredentials()), nearcall.WithContextDialer(p.dial),
		nearcall.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: time.Second, Multiplier: 2, MaxDelay: 10 * time.Second}}))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return p, conn
}

// leaves are the ways in which a server can leave after its hello.
var leaves = map[string]func(*mux.Session){
	"drains": func(s *mux.Session) { s.Drain() },
	"closes": func(s *mux.Session) { _ = s.Close(errors.New("not today")) },
}

// insist makes a call again for as long as servers refuse it. A call that reached two servers before
// it was known that they leave is refused for good.
func insist(ctx context.Context, client testpb.TestServiceClient) <-chan error {
	ended := make(chan error, 1)
	go func() {
		for {
			err := <-invoke(ctx, client, grpc.WaitForReady(true))
			if status.Code(err) != codes.Unavailable {
				ended <- err
				return
			}
		}
	}()
	return ended
}

func inSeconds(d ...time.Duration) (all []time.Duration) {
	for _, d := range d {
		all = append(all, d*time.Second)
	}
	return all
}

// TestAServerThatLeavesAtOnceIsNotDialledInALoop: for a waiting call the client dials
// once more at once, and then with the backoff of failed attempts.
func TestAServerThatLeavesAtOnceIsNotDialledInALoop(t *testing.T) {
	for name, leave := range leaves {
		for retry, opts := range map[string][]nearcall.DialOption{"retry": nil, "no retry": {nearcall.WithDisableRetry()}} {
			t.Run(name+"/"+retry, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					p, conn := at(t, leave, opts...)
					call := insist(t.Context(), testpb.NewTestServiceClient(conn))
					time.Sleep(time.Minute)
					if got, want := p.dialled(), inSeconds(0, 0, 1, 3, 7, 15, 25, 35, 45, 55); !slices.Equal(got, want) {
						t.Errorf("it was dialled at %v, want %v", got, want)
					}
					p.opens(t, echo{})
					wantCode(t, <-call, codes.OK)
					if got, want := p.dialled(), 65*time.Second; got[len(got)-1] != want {
						t.Errorf("the server that stays was dialled at %v, want %v", got[len(got)-1], want)
					}
				})
			})
		}
	}
}

// TestDenyingServerIsNotDialledInALoop checks that a call whose header has
// arrived is not made again, and that a frame for a call that has ended is no answer.
func TestDenyingServerIsNotDialledInALoop(t *testing.T) {
	const id = 1
	header := []byte{3, 0, byte(wire.KindStream | wire.FlagHead), id, 0}
	reset := wire.AppendReset(nil, id, wire.ResetUnprocessed, "not seen")
	for name, c := range map[string]struct {
		say   []byte
		dials int // within a minute
	}{
		"header, DRAIN":        {wire.AppendDrain(header, 0), 1},
		"header, RESET, DRAIN": {wire.AppendDrain(slices.Concat(header, reset), 0), 1},
		// DRAIN comes first, so that the session is ending when the caller learns of RESET.
		"DRAIN, RESET, header": {slices.Concat(wire.AppendDrain(nil, 0), reset, header), 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, conn := at(t, nil)
				p.answer = func(far net.Conn) {
					s := &stranger{t: t, conn: far, in: bufio.NewReader(far)}
					s.answer()
					s.write(greeting(wire.MinWindow))
					_ = s.frames(func(f wire.Frame) bool {
						if f.Kind.Stream() {
							go s.write(c.say)
						}
						return f.Kind == wire.KindBye
					})
					_ = far.Close()
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				if err := <-invoke(ctx, testpb.NewTestServiceClient(conn), grpc.WaitForReady(true)); err == nil {
					t.Error("the call succeeds")
				}
				if got := p.dialled(); len(got) != c.dials {
					t.Errorf("it was dialled at %v, want %d times", got, c.dials)
				}
			})
		})
	}
}

// The default backoff finds a restarted server on this host soon. Over a network the
// second attempt waits for a second.
func TestTheBackoffSuitsTheTarget(t *testing.T) {
	for target, want := range map[string]struct{ second, minute [2]int }{ // minimum and maximum number of dials
		"unix:/run/place": {[2]int{6, 9}, [2]int{50, 80}},
		"tcp:place:0":     {[2]int{1, 2}, [2]int{5, 9}},
	} {
		t.Run(target, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var dials atomic.Int32
				conn, err := nearcall.NewClient(target, nearcall.WithTransportCredentials(insecure.NewCredentials()),
					nearcall.WithContextDialer(func(context.Context, string) (net.Conn, error) {
						dials.Add(1)
						return nil, errors.New("nobody is there")
					}))
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				ctx, cancel := context.WithCancel(t.Context())
				call := invoke(ctx, testpb.NewTestServiceClient(conn), grpc.WaitForReady(true))
				dialled := func(within string, least, most int) {
					if n := int(dials.Load()); n < least || n > most {
						t.Errorf("it was dialled %d times %s, want %d to %d", n, within, least, most)
					}
				}
				time.Sleep(time.Second)
				dialled("within a second", want.second[0], want.second[1])
				time.Sleep(59 * time.Second)
				dialled("within a minute", want.minute[0], want.minute[1])
				cancel()
				wantCode(t, <-call, codes.Canceled)
			})
		})
	}
}

// TestCallsThatDoNotWaitFailMeanwhile: they fail as during any backoff.
func TestCallsThatDoNotWaitFailMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, conn := at(t, leaves["drains"])
		for n := range 100 {
			err := <-invoke(t.Context(), testpb.NewTestServiceClient(conn))
			wantCode(t, err, codes.Unavailable)
			refused := n == 0 && strings.Contains(err.Error(), "the server is about to leave") // twice, before the client knew
			if !refused && !strings.Contains(err.Error(), "ends connections as soon as they have begun: the peer is going away") {
				t.Errorf("the reason is %v", err)
			}
		}
		if got, want := p.dialled(), inSeconds(0, 0); !slices.Equal(got, want) {
			t.Errorf("it was dialled at %v, want %v", got, want)
		}
		if s := conn.GetState(); s != connectivity.TransientFailure {
			t.Errorf("the state is %v", s)
		}
		// No call waits for a connection, so only the attempt under way continues.
		time.Sleep(time.Hour)
		if got, want := p.dialled(), inSeconds(0, 0, 1); !slices.Equal(got, want) {
			t.Errorf("it was dialled at %v, want %v", got, want)
		}
		p.opens(t, echo{})
		wantCode(t, <-invoke(t.Context(), testpb.NewTestServiceClient(conn)), codes.OK)
		if n := len(p.dialled()); n != 4 {
			t.Errorf("after an hour it is dialled %d times, want 1", n-3)
		}
	})
}

// TestResetConnectBackoffEndsThePause: the backoff starts anew, as if no attempt had
// failed.
func TestResetConnectBackoffEndsThePause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, conn := at(t, leaves["drains"])
		call := insist(t.Context(), testpb.NewTestServiceClient(conn))
		time.Sleep(8 * time.Second) // the next attempt is due after 15 s
		conn.ResetConnectBackoff()
		if got, want := p.dialled(), inSeconds(0, 0, 1, 3, 7, 8, 8); !slices.Equal(got, want) {
			t.Errorf("it was dialled at %v, want %v", got, want)
		}
		p.opens(t, echo{})
		conn.ResetConnectBackoff()
		wantCode(t, <-call, codes.OK)
		if got := p.dialled(); got[len(got)-1] != 8*time.Second {
			t.Errorf("it was dialled at %v", got)
		}
	})
}

// TestServersThatServedAreReplacedWithoutAPause: this holds even if each server existed
// for a short time only.
func TestServersThatServedAreReplacedWithoutAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, conn := at(t, nil)
		for range 20 {
			srv := p.opens(t, echo{})
			wantCode(t, <-invoke(t.Context(), testpb.NewTestServiceClient(conn)), codes.OK)
			srv.GracefulStop()
		}
		if got := p.dialled(); len(got) != 20 || got[19] != 0 {
			t.Errorf("20 servers were dialled at %v", got)
		}
	})
}

// TestLastingServerIsReplacedWithoutPause: this holds even if they
// served no call.
func TestLastingServerIsReplacedWithoutPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, conn := at(t, nil)
		for range 5 {
			srv := p.opens(t, echo{})
			conn.Connect()
			wantState(t, conn, 2*time.Second, connectivity.Ready)
			srv.GracefulStop()
			wantState(t, conn, 0, connectivity.Idle)
		}
		if got, want := p.dialled(), inSeconds(0, 2, 4, 6, 8); !slices.Equal(got, want) {
			t.Errorf("they were dialled at %v, want %v", got, want)
		}
	})
}

// TestBecomingIdleIsNotTheServersDoing: connections that this side closes do not cause
// a backoff.
func TestBecomingIdleIsNotTheServersDoing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, conn := at(t, nil, nearcall.WithIdleTimeout(100*time.Millisecond))
		p.opens(t, echo{})
		for range 5 {
			conn.Connect()
			wantState(t, conn, 99*time.Millisecond, connectivity.Ready)
			wantState(t, conn, time.Millisecond, connectivity.Idle)
		}
		if n := len(p.dialled()); n != 5 {
			t.Errorf("%d dials, want 5", n)
		}
	})
}

func TestWaitForReadyWaitsForTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn, err := nearcall.NewClient("inproc:later")
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		client := testpb.NewTestServiceClient(conn)
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		wantCode(t, <-invoke(short, client, grpc.WaitForReady(true)), codes.DeadlineExceeded)

		call := invoke(t.Context(), client, grpc.WaitForReady(true))
		synctest.Wait()
		lis, err := nearcall.Listen("inproc:later")
		if err != nil {
			t.Fatal(err)
		}
		srv := serve(t, echo{})
		go srv.Serve(lis)
		before := time.Now()
		wantCode(t, <-call, codes.OK)
		if d := time.Since(before); d != 0 {
			t.Errorf("the client noticed the new name after %v; it is told of it", d)
		}
	})
}

// An attempt to connect may take as long as in grpc-go, whatever the target and ConnectParams.
func TestAnAttemptToConnectMayTakeAsLongAsInGRPC(t *testing.T) {
	slow := backoff.Config{BaseDelay: time.Second, Multiplier: 4, MaxDelay: time.Minute}
	for name, params := range map[string]*grpc.ConnectParams{
		"no MinConnectTimeout":       {Backoff: slow},
		"short MinConnectTimeout":    {Backoff: slow, MinConnectTimeout: 3 * time.Second},
		"negative MinConnectTimeout": {Backoff: slow, MinConnectTimeout: -1},
		"no ConnectParams":           nil,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				insecure := insecure.NewCredentials()
				var attempts int
				dial, allowed := timeouts()
				opts := []grpc.DialOption{grpc.WithContextDialer(dial), grpc.WithTransportCredentials(insecure)}
				if attempts = 1; params != nil {
					opts, attempts = append(opts, grpc.WithConnectParams(*params)), 4
				}
				oracle, err := grpc.NewClient("passthrough:///server:1", opts...)
				if err != nil {
					t.Fatal(err)
				}
				oracle.Connect()
				want := allowed(attempts)
				_ = oracle.Close()
				for _, target := range []string{"tcp:server:1", "unix:server", "passthrough:///server:1"} {
					dial, allowed := timeouts()
					opts := []nearcall.DialOption{nearcall.WithContextDialer(dial), nearcall.WithTransportCredentials(insecure)}
					if params != nil {
						opts = append(opts, nearcall.WithConnectParams(*params))
					}
					conn, err := nearcall.NewClient(target, opts...)
					if err != nil {
						t.Fatal(err)
					}
					conn.Connect()
					if got := allowed(attempts); !slices.Equal(got, want) {
						t.Errorf("attempts to connect to %s may take %v, and in grpc-go %v", target, got, want)
					}
					_ = conn.Close()
				}
			})
		})
	}
}

// timeouts returns a dialer that never connects, and how long its first n attempts may take.
func timeouts() (dial func(context.Context, string) (net.Conn, error), allowed func(n int) []time.Duration) {
	all := make(chan time.Duration, 16)
	dial = func(ctx context.Context, _ string) (net.Conn, error) {
		deadline, _ := ctx.Deadline()
		select {
		case all <- time.Until(deadline):
		default:
		}
		return nil, io.EOF
	}
	return dial, func(n int) (got []time.Duration) {
		for range n {
			got = append(got, <-all)
		}
		return got
	}
}
