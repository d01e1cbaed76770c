package test

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/test/bufconn"

	"github.com/nearcall/nearcall"
)

const idle = time.Minute

// idling runs f in a bubble, with a connection whose idle timeout is a minute. dials
// counts the connections made. Unary calls block until release is closed.
func idling(t *testing.T, f func(t *testing.T, conn *nearcall.ClientConn, dials *atomic.Int32, release chan struct{})) {
	synctest.Test(t, func(t *testing.T) {
		lis := bufconn.Listen(1 << 16)
		service, _, release := waiting()
		start(t, serve(t, service), lis)
		var dials atomic.Int32
		conn, err := nearcall.NewClient("tcp:bufconn:0",
			nearcall.WithTransportCredentials(insecure.NewCredentials()), nearcall.WithIdleTimeout(idle),
			nearcall.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
				dials.Add(1)
				return lis.DialContext(ctx)
			}))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		f(t, conn, &dials, release)
	})
}

func TestAConnectionWithoutCallsBecomesIdle(t *testing.T) {
	idling(t, func(t *testing.T, conn *nearcall.ClientConn, dials *atomic.Int32, release chan struct{}) {
		close(release)
		client := testpb.NewTestServiceClient(conn)
		for range 10 { // longer than the timeout in total
			wantCode(t, <-invoke(t.Context(), client), codes.OK)
			wantState(t, conn, idle/2, connectivity.Ready)
		}
		wantState(t, conn, idle/2+idle/4, connectivity.Idle)
		if n := dials.Load(); n != 1 {
			t.Errorf("%d dials, want 1", n)
		}
		conn.Connect()
		wantState(t, conn, idle-1, connectivity.Ready)
		wantState(t, conn, 1, connectivity.Idle)
		wantCode(t, <-invoke(t.Context(), client), codes.OK)
		if n := dials.Load(); n != 3 {
			t.Errorf("%d dials, want 3", n)
		}
	})
}

func TestCallsThatRunKeepAConnection(t *testing.T) {
	idling(t, func(t *testing.T, conn *nearcall.ClientConn, dials *atomic.Int32, release chan struct{}) {
		client := testpb.NewTestServiceClient(conn)
		ctx, cancel := context.WithCancel(t.Context())
		if _, err := client.FullDuplexCall(ctx); err != nil {
			t.Fatal(err)
		}
		wantState(t, conn, 5*idle, connectivity.Ready)
		cancel()
		wantState(t, conn, idle+idle/4, connectivity.Idle)

		call := invoke(t.Context(), client)
		wantState(t, conn, 5*idle, connectivity.Ready)
		close(release)
		wantCode(t, <-call, codes.OK)
		wantState(t, conn, idle+idle/4, connectivity.Idle)
		if n := dials.Load(); n != 2 {
			t.Errorf("%d dials, want 2", n)
		}
	})
}

// Calls that the server makes count like the client's own. Without calls in either direction
// the connection becomes idle, and the server cannot call the client until it calls again.
func TestCallsOfTheServerKeepAClientsConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lis := bufconn.Listen(1 << 16)
		e, conns := handing()
		start(t, serve(t, e), lis)
		waits, running, release := waiting()
		conn, err := nearcall.NewClient("tcp:bufconn:0", nearcall.WithServer(serve(t, waits)),
			nearcall.WithTransportCredentials(insecure.NewCredentials()), nearcall.WithIdleTimeout(idle),
			nearcall.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		client := testpb.NewTestServiceClient(conn)
		wantCode(t, <-invoke(t.Context(), client), codes.OK)
		peer := <-conns
		long := invoke(t.Context(), peer)
		<-running
		wantState(t, conn, 5*idle, connectivity.Ready) // one call that lasts
		close(release)
		wantCode(t, <-long, codes.OK)
		for range 10 { // several, longer than the timeout in total
			wantState(t, conn, idle/2, connectivity.Ready)
			wantCode(t, <-invoke(t.Context(), peer), codes.OK)
		}
		stream, cancel := context.WithCancel(t.Context())
		if _, err := peer.FullDuplexCall(stream); err != nil {
			t.Fatal(err)
		}
		wantState(t, conn, 5*idle, connectivity.Ready)
		cancel()
		wantState(t, conn, idle+idle/4, connectivity.Idle)
		wantCode(t, <-invoke(t.Context(), peer), codes.Unavailable)
		wantCode(t, <-invoke(t.Context(), client), codes.OK)
		wantCode(t, <-invoke(t.Context(), <-conns), codes.OK)
	})
}

func TestAConnectionThatFailsBecomesIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var dials atomic.Int32
		conn, err := nearcall.NewClient("unix:nobody", nearcall.WithIdleTimeout(idle),
			nearcall.WithContextDialer(func(context.Context, string) (net.Conn, error) {
				dials.Add(1)
				return nil, errors.New("refused by the test")
			}))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conn.Connect()
		wantState(t, conn, idle/2, connectivity.TransientFailure)
		wantState(t, conn, idle/2+1, connectivity.Idle)
		before := dials.Load()
		wantState(t, conn, time.Hour, connectivity.Idle)
		if dials.Load() != before {
			t.Error("an idle connection dials")
		}
		wantCode(t, <-invoke(t.Context(), testpb.NewTestServiceClient(conn)), codes.Unavailable)
		if dials.Load() == before {
			t.Error("a call did not end the idleness")
		}
		short, cancel := context.WithTimeout(t.Context(), 3*idle)
		defer cancel()
		wantCode(t, <-invoke(short, testpb.NewTestServiceClient(conn), grpc.WaitForReady(true)), codes.DeadlineExceeded)
	})
}
