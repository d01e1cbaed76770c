package quic

import (
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/registry"
	"github.com/nearcall/nearcall/internal/wire"
)

// A mutable conn sends nothing while it is mute, and counts what it sends.
type mutable struct {
	net.PacketConn
	mute *atomic.Bool
	sent *atomic.Int64
}

func (c mutable) WriteTo(b []byte, to net.Addr) (int, error) {
	if c.mute.Load() {
		return len(b), nil
	}
	c.sent.Add(1)
	return c.PacketConn.WriteTo(b, to)
}

// A peer that sends nothing is lost within the time that docs/quic.md gives, on both sides, even if
// something is sent to it meanwhile.
func TestASilentPeerIsLostInTime(t *testing.T) {
	for name, c := range map[string]struct {
		client keepalive.ClientParameters
		server keepalive.ServerParameters
		least  [2]time.Duration // of the client and of the server: the time for an answer
		limits [2]time.Duration
	}{
		"defaults": {least: [2]time.Duration{20 * time.Second, 20 * time.Second}, limits: [2]time.Duration{30 * time.Second, 30 * time.Second}},
		"set on both sides": {
			keepalive.ClientParameters{Time: 12 * time.Second, Timeout: 3 * time.Second}, keepalive.ServerParameters{Time: 4 * time.Second, Timeout: time.Second},
			[2]time.Duration{3 * time.Second, time.Second}, [2]time.Duration{15 * time.Second, 5 * time.Second},
		},
	} {
		for _, sends := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					n := plainNetwork(t)
					var mute atomic.Bool
					var sent atomic.Int64
					n.lis.pc = mutable{n.lis.pc, &mute, &sent}
					lost := make(chan time.Time, 1)
					config, _ := testTLS()
					serveOn(t, n.lis, service{stream: func(st testpb.TestService_FullDuplexCallServer) error {
						_ = st.Send(&testpb.StreamingOutputCallResponse{})
						for sends && !mute.Load() {
							time.Sleep(time.Second)
						}
						if sends {
							time.Sleep(c.limits[1] * 2 / 3)
							_ = st.Send(&testpb.StreamingOutputCallResponse{})
						}
						<-st.Context().Done()
						lost <- time.Now()
						return nil
					}}, nearcall.Creds(nearcall.NewTLS(config)), nearcall.KeepaliveParams(c.server))
					d := n.dialer(t, &registry.Settings{Config: clientOptions(nearcall.WithKeepaliveParams(c.client))})
					listen := d.listen
					d.listen = func() (net.PacketConn, error) {
						pc, err := listen()
						return mutable{pc, &mute, &sent}, err
					}
					client := dial(t, "inproc:unused", options.WithDialer(d))
					st, err := client.FullDuplexCall(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					if _, err := st.Recv(); err != nil {
						t.Fatal(err)
					}
					time.Sleep(7*time.Minute + 3500*time.Millisecond) // it is quiet, and not lost
					mute.Store(true)
					silent := time.Now()
					if sends {
						time.Sleep(c.limits[0] * 2 / 3)
						_ = st.Send(&testpb.StreamingOutputCallRequest{})
					}
					_, err = st.Recv()
					if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "connection lost") {
						t.Errorf("Recv: %v, want Unavailable", err)
					}
					for i, end := range [2]time.Time{time.Now(), <-lost} {
						if took := end.Sub(silent); took > c.limits[i] || took < c.least[i] {
							t.Errorf("side %d: the peer is lost after %v, want %v to %v", i, took, c.least[i], c.limits[i])
						}
					}
				})
			})
		}
	}
}

// What keeps a quiet connection alive is few packets.
func TestAQuietConnectionCostsFewPackets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := plainNetwork(t)
		var mute atomic.Bool
		var sent atomic.Int64
		n.lis.pc = mutable{n.lis.pc, &mute, &sent}
		config, _ := testTLS()
		serveOn(t, n.lis, service{}, nearcall.Creds(nearcall.NewTLS(config)))
		client := n.client(t)
		if _, err := client.UnaryCall(t.Context(), empty); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		before := sent.Load()
		time.Sleep(time.Hour)
		if n := sent.Load() - before; n < 360 || n > 600 { // one in 7.5 to 10 s, and some that ask for an answer
			t.Errorf("the server sends %d packets in an hour", n)
		}
	})
}

// A client notices within the time of a probe that its server was started again, even if it sends
// nothing. Calls that wait for their turn are made on the new connection.
func TestARestartIsNoticedWithoutCalls(t *testing.T) {
	for name, messages := range map[string]int{"of a new connection": 0, "of one that was busy": 60} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := plainNetwork(t)
				config, _ := testTLS()
				opts := []nearcall.ServerOption{nearcall.Creds(nearcall.NewTLS(config)), StatelessResetKey([32]byte{1}), nearcall.MaxConcurrentStreams(1)}
				svc := service{stream: func(st testpb.TestService_FullDuplexCallServer) error {
					_ = st.Send(&testpb.StreamingOutputCallResponse{})
					<-st.Context().Done()
					return nil
				}}
				first := nearcall.NewServer(opts...)
				testpb.RegisterTestServiceServer(first, svc)
				ended := make(chan error, 1)
				go func() { ended <- first.Serve(n.lis) }()
				client := n.client(t)
				for range messages {
					if _, err := client.UnaryCall(t.Context(), payload(20_000)); err != nil {
						t.Fatal(err)
					}
				}
				st, err := client.FullDuplexCall(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if _, err := st.Recv(); err != nil {
					t.Fatal(err)
				}
				waiting := make(chan error)
				go func() {
					_, err := client.UnaryCall(t.Context(), empty)
					waiting <- err
				}()
				time.Sleep(time.Minute + 300*time.Millisecond)
				_ = n.lis.pc.Close() // and the server cannot say anything any more
				<-ended
				first.Stop()
				n.router.RemoveNode(n.server)
				serveOn(t, n.listener(), svc, opts...)
				begun := time.Now()
				if _, err := st.Recv(); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "may have been restarted") {
					t.Errorf("%v, want Unavailable because of a stateless reset", err)
				}
				if took := time.Since(begun); took > 10*time.Second+time.Second {
					t.Errorf("it is noticed after %v", took)
				}
				if err := <-waiting; err != nil {
					t.Errorf("the call that waited: %v", err)
				}
				if took := time.Since(begun); took > 10*time.Second+2*time.Second {
					t.Errorf("the call that waited has ended after %v", took)
				}
			})
		})
	}
}

func TestTheProbeIsAFrameThatMeansNothing(t *testing.T) {
	f, n, err := wire.Next(probe)
	if err != nil || n != len(probe) || !f.Kind.Ignorable() || n <= 42 {
		t.Errorf("%d of %d bytes: %+v, %v", n, len(probe), f, err)
	}
}
