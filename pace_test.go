package nearcall_test

import (
	"context"
	"errors"
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
	"google.golang.org/grpc/test/bufconn"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/mux"
)

// A place is where a client dials: a server, or what says hello and leaves.
type place struct {
	mu    sync.Mutex
	leave func(*mux.Session) // nil where there is a server
	lis   *bufconn.Listener
	begun time.Time
	dials []time.Duration // when it was dialled
}

func (p *place) dial(ctx context.Context, _ string) (net.Conn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dials = append(p.dials, time.Since(p.begun))
	if len(p.dials) > 100 {
		return nil, errors.New("that is too often") // and would go on for ever, in no time
	}
	if p.leave == nil {
		return p.lis.DialContext(ctx)
	}
	near, far := net.Pipe()
	s := mux.New(far, mux.Options{Name: "client"})
	s.Start(leaver{})
	p.leave(s)
	return near, nil
}

// A leaver is what takes calls of a server that is about to leave: it is told of none.
type leaver struct{ link.Acceptor }

func (leaver) Closed(error) {}
func (leaver) Gone()        {}

// dialled returns when it was dialled.
func (p *place) dialled() []time.Duration {
	synctest.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.dials)
}

// opens puts a server there from now on.
func (p *place) opens(t *testing.T) *nearcall.Server {
	srv, lis := serve(t, echo{}), bufconn.Listen(1<<16)
	start(t, srv, lis)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leave, p.lis = nil, lis
	return srv
}

// at returns a place and a connection that dials it, with a backoff of 1, 2, 4, 8
// and then 10 seconds.
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

// leaves are the ways in which a server leaves that has said hello.
var leaves = map[string]func(*mux.Session){
	"drains": func(s *mux.Session) { s.Drain() },
	"closes": func(s *mux.Session) { _ = s.Close(errors.New("not today")) },
}

func inSeconds(d ...time.Duration) (all []time.Duration) {
	for _, d := range d {
		all = append(all, d*time.Second)
	}
	return all
}

// TestAServerThatLeavesAtOnceIsNotDialledInALoop: a call that waits has it
// dialled once more at once, and then with the backoff of attempts that fail.
func TestAServerThatLeavesAtOnceIsNotDialledInALoop(t *testing.T) {
	for name, leave := range leaves {
		for retry, opts := range map[string][]nearcall.DialOption{"retry": nil, "no retry": {nearcall.WithDisableRetry()}} {
			t.Run(name+"/"+retry, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					p, conn := at(t, leave, opts...)
					call := invoke(t.Context(), testpb.NewTestServiceClient(conn), grpc.WaitForReady(true))
					time.Sleep(time.Minute)
					if got, want := p.dialled(), inSeconds(0, 0, 1, 3, 7, 15, 25, 35, 45, 55); !slices.Equal(got, want) {
						t.Errorf("it was dialled at %v, want %v", got, want)
					}
					p.opens(t)
					wantCode(t, <-call, codes.OK)
					if got, want := p.dialled(), 65*time.Second; got[len(got)-1] != want {
						t.Errorf("the server that stays was dialled at %v, want %v", got[len(got)-1], want)
					}
				})
			})
		}
	}
}

// A server on this host that starts again is found soon: over a network an attempt
// waits for a second after the first.
func TestTheBackoffSuitsTheTarget(t *testing.T) {
	for target, want := range map[string]struct{ second, minute [2]int }{ // from and to
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

// TestCallsThatDoNotWaitFailMeanwhile, as they do during any backoff.
func TestCallsThatDoNotWaitFailMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, conn := at(t, leaves["drains"])
		for range 100 {
			err := <-invoke(t.Context(), testpb.NewTestServiceClient(conn))
			wantCode(t, err, codes.Unavailable)
			if !strings.Contains(err.Error(), "ends connections as soon as they have begun: the peer is going away") {
				t.Errorf("the reason is %v", err)
			}
		}
		if got, want := p.dialled(), inSeconds(0, 0); !slices.Equal(got, want) {
			t.Errorf("it was dialled at %v, want %v", got, want)
		}
		if s := conn.GetState(); s != connectivity.TransientFailure {
			t.Errorf("the state is %v", s)
		}
		// Nobody wants a connection any more: one attempt was under way.
		time.Sleep(time.Hour)
		if got, want := p.dialled(), inSeconds(0, 0, 1); !slices.Equal(got, want) {
			t.Errorf("it was dialled at %v, want %v", got, want)
		}
		p.opens(t)
		wantCode(t, <-invoke(t.Context(), testpb.NewTestServiceClient(conn)), codes.OK)
		if n := len(p.dialled()); n != 4 {
			t.Errorf("after an hour it is dialled %d times, want 1", n-3)
		}
	})
}

// TestResetConnectBackoffEndsThePause, and all that led to it is forgotten.
func TestResetConnectBackoffEndsThePause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, conn := at(t, leaves["drains"])
		call := invoke(t.Context(), testpb.NewTestServiceClient(conn), grpc.WaitForReady(true))
		time.Sleep(8 * time.Second) // the next is due after 15
		conn.ResetConnectBackoff()
		if got, want := p.dialled(), inSeconds(0, 0, 1, 3, 7, 8, 8); !slices.Equal(got, want) {
			t.Errorf("it was dialled at %v, want %v", got, want)
		}
		p.opens(t)
		conn.ResetConnectBackoff()
		wantCode(t, <-call, codes.OK)
		if got := p.dialled(); got[len(got)-1] != 8*time.Second {
			t.Errorf("it was dialled at %v", got)
		}
	})
}

// TestServersThatServedAreReplacedWithoutAPause, however short the time that each
// of them was there.
func TestServersThatServedAreReplacedWithoutAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, conn := at(t, nil)
		for range 20 {
			srv := p.opens(t)
			wantCode(t, <-invoke(t.Context(), testpb.NewTestServiceClient(conn)), codes.OK)
			srv.GracefulStop()
		}
		if got := p.dialled(); len(got) != 20 || got[19] != 0 {
			t.Errorf("20 servers were dialled at %v", got)
		}
	})
}

// TestServersThatWereThereForAWhileAreReplacedWithoutAPause, though they served
// nothing.
func TestServersThatWereThereForAWhileAreReplacedWithoutAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, conn := at(t, nil)
		for range 5 {
			srv := p.opens(t)
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

// TestBecomingIdleIsNotTheServersDoing: what this side ends does not count.
func TestBecomingIdleIsNotTheServersDoing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, conn := at(t, nil, nearcall.WithIdleTimeout(100*time.Millisecond))
		p.opens(t)
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
