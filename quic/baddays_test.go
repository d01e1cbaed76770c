package quic

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	q "github.com/quic-go/quic-go"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/registry"
	"github.com/nearcall/nearcall/internal/testing/transporttest"
)

func TestACallIsQuietForLongerThanTheIdleTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := plainNetwork(t)
		config, _ := testTLS()
		serveOn(t, n.lis, service{unary: func(ctx context.Context, _ *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
			time.Sleep(20 * 30 * time.Second)
			return &testpb.SimpleResponse{}, ctx.Err()
		}}, nearcall.Creds(nearcall.NewTLS(config)))
		if _, err := n.client(t).UnaryCall(t.Context(), empty); err != nil {
			t.Error(err)
		}
	})
}

func TestNobodyListens(t *testing.T) {
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	target := "quic:" + pc.LocalAddr().String()
	_ = pc.Close()
	begun := time.Now()
	_, err = dial(t, target).UnaryCall(t.Context(), empty)
	if status.Code(err) != codes.Unavailable {
		t.Errorf("%v, want Unavailable", err)
	}
	if took := time.Since(begun); runtime.GOOS == "linux" && took > 5*time.Second {
		t.Errorf("the call failed after %v, the system knows at once", took)
	}
}

func TestADrainingServerRefusesNewClientsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := plainNetwork(t)
		config, _ := testTLS()
		release := make(chan struct{})
		srv := serveOn(t, n.lis, service{unary: func(context.Context, *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
			<-release
			return &testpb.SimpleResponse{}, nil
		}}, nearcall.Creds(nearcall.NewTLS(config)))
		running := make(chan error)
		go func() {
			_, err := n.client(t).UnaryCall(t.Context(), empty)
			running <- err
		}()
		synctest.Wait()
		stopped := make(chan struct{})
		go func() {
			srv.GracefulStop()
			close(stopped)
		}()
		synctest.Wait()
		begun := time.Now()
		_, err := n.client(t).UnaryCall(t.Context(), empty)
		if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "takes no new connections") {
			t.Errorf("%v, want Unavailable because the server takes no new connections", err)
		}
		if took := time.Since(begun); took > time.Second {
			t.Errorf("the client was refused after %v", took)
		}
		close(release)
		if err := <-running; err != nil {
			t.Errorf("the running call: %v", err)
		}
		begun = time.Now()
		<-stopped
		if took := time.Since(begun); took > time.Second {
			t.Errorf("GracefulStop returned %v after the last call", took)
		}
	})
}

func TestAServerThatVanishedResetsItsConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := plainNetwork(t)
		config, _ := testTLS()
		opts := []nearcall.ServerOption{nearcall.Creds(nearcall.NewTLS(config)), StatelessResetKey([32]byte{1})}
		first := nearcall.NewServer(opts...)
		testpb.RegisterTestServiceServer(first, service{})
		defer first.Stop() // its idle worker is still there
		ended := make(chan error, 1)
		go func() { ended <- first.Serve(n.lis) }()
		client := n.client(t)
		if _, err := client.UnaryCall(t.Context(), empty); err != nil {
			t.Fatal(err)
		}
		_ = n.lis.pc.Close() // and the server cannot say anything any more
		if err := <-ended; err == nil {
			t.Error("Serve returned nil without its socket")
		}
		n.router.RemoveNode(n.server)
		again := n.listener()
		serveOn(t, again, service{}, opts...)
		begun := time.Now()
		_, err := client.UnaryCall(t.Context(), empty)
		if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "may have been restarted") {
			t.Errorf("%v, want Unavailable because of a stateless reset", err)
		}
		if took := time.Since(begun); took > 5*time.Second {
			t.Errorf("the call failed after %v", took)
		}
		if _, err := client.UnaryCall(t.Context(), empty); err != nil {
			t.Errorf("the next call: %v", err)
		}
	})
}

// A spyingListener shows the sessions that it passes on.
type spyingListener struct {
	*listener
	sessions chan *session
}

func (l spyingListener) Sessions(accept func(link.Session) link.Acceptor) error {
	return l.listener.Sessions(func(s link.Session) link.Acceptor {
		l.sessions <- s.(*session)
		return accept(s)
	})
}

// The packet with the server's DRAIN can be lost, and arrive after several refusals.
func TestACallThatIsRefusedIsTriedAgainOnAnotherConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := plainNetwork(t)
		lis := spyingListener{n.lis, make(chan *session, 2)}
		config, _ := testTLS()
		serveOn(t, lis, service{}, nearcall.Creds(nearcall.NewTLS(config)))
		client := n.client(t)
		if _, err := client.UnaryCall(t.Context(), empty); err != nil {
			t.Fatal(err)
		}
		first := <-lis.sessions
		first.mu.Lock()
		first.life.CallBegins() // so that the session stays
		first.life.StopAccepting(errors.New("the server is going away"))
		first.life.PeerAnswers() // and nothing tells the client
		first.mu.Unlock()
		if _, err := client.UnaryCall(t.Context(), empty); err != nil {
			t.Error(err)
		}
		if len(lis.sessions) != 1 {
			t.Errorf("%d more connections, want 1", len(lis.sessions))
		}
	})
}

func TestAnAbortCallbackMayReceive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		accepted := make(transporttest.Accepter, 1)
		n := newNetwork(t, &registry.Settings{}, func(link.Session) link.Acceptor { return accepted })
		st, err := n.dial(t, &registry.Settings{}).NewStream(t.Context(), &link.CallHeader{Method: "/a/b", Profile: &link.Profile{}})
		if err != nil {
			t.Fatal(err)
		}
		received := make(chan error, 1)
		st.OnAbort(func(error) { received <- st.Recv(new(link.Frame)) })
		(<-accepted).Abort(errors.New("no more"))
		if err := <-received; err == nil || err.Error() != "no more" {
			t.Errorf("Recv: %v, want the text of the callee's reason", err)
		}
	})
}

// Windows that are larger than the buffers of the sockets make even the loopback interface lose
// packets.
func TestLargeMessagesPassThroughSmallSocketBuffers(t *testing.T) {
	const window, size = 16 << 20, 6 << 20
	_, target := serve(t, service{}, nearcall.MaxRecvMsgSize(1<<30), nearcall.InitialWindowSize(window), nearcall.InitialConnWindowSize(window))
	client := dial(t, target, nearcall.WithInitialWindowSize(window), nearcall.WithInitialConnWindowSize(window),
		nearcall.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<30)))
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			out, err := client.UnaryCall(t.Context(), payload(size))
			if err != nil || len(out.Payload.Body) != size {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

func TestTheServerMissesTheClientsCertificate(t *testing.T) {
	lis, err := nearcall.Listen("quic:127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	there, here := testTLS()
	there.ClientAuth = tls.RequireAndVerifyClientCert
	serveOn(t, lis, service{}, nearcall.Creds(nearcall.NewTLS(there)))
	if _, err := dial(t, lis.Target()).UnaryCall(t.Context(), empty); err != nil {
		t.Errorf("with a certificate: %v", err)
	}
	here.Certificates = nil
	_, err = dial(t, lis.Target(), nearcall.WithTransportCredentials(nearcall.NewTLS(here))).UnaryCall(t.Context(), empty)
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("%v, want Unavailable because of the certificate", err)
	}
}

func TestCallsThatDoNotBeginAreReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		accepted := make(transporttest.Accepter, 1)
		n := newNetwork(t, &registry.Settings{Config: serverOptions(nearcall.MaxConcurrentStreams(10))}, func(link.Session) link.Acceptor { return accepted })
		c := n.dial(t, &registry.Settings{})
		var quiet []*q.Stream
		for range 10 {
			qs, err := c.conn.OpenStream()
			if err != nil {
				t.Fatal(err)
			}
			_, _ = qs.Write([]byte{9})
			quiet = append(quiet, qs)
		}
		st, err := c.NewStream(t.Context(), &link.CallHeader{Method: "/a/b", Profile: &link.Profile{}})
		if err != nil {
			t.Fatal(err) // it waits until the others are reset
		}
		<-accepted
		st.Abort(context.Canceled)
		for _, qs := range quiet {
			if b, _ := io.ReadAll(qs); !strings.Contains(string(b), "has no head") {
				t.Errorf("the peer was told %q", b)
			}
			qs.CancelWrite(0)
		}
	})
}

func TestStreamsThatNobodyReceivesStallNoOthers(t *testing.T) {
	release := make(chan struct{})
	_, target := serve(t, service{stream: func(testpb.TestService_FullDuplexCallServer) error {
		<-release
		return nil
	}})
	client := dial(t, target)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	message := &testpb.StreamingOutputCallRequest{Payload: &testpb.Payload{Body: make([]byte, 100_000)}}
	var all sync.WaitGroup
	for range 40 {
		st, err := client.FullDuplexCall(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for range 4 {
			if err := st.Send(message); err != nil {
				t.Fatal(err)
			}
		}
		all.Go(func() {
			if _, err := st.Recv(); err != io.EOF {
				t.Errorf("Recv: %v, want io.EOF", err)
			}
		})
	}
	if _, err := client.UnaryCall(ctx, payload(1<<20)); err != nil {
		t.Error(err)
	}
	close(release)
	all.Wait()
}
