package quic

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	q "github.com/quic-go/quic-go"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/codec"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/message"
	"github.com/nearcall/nearcall/internal/registry"
	"github.com/nearcall/nearcall/internal/testing/transporttest"
)

// A slowConn takes some time for each packet.
type slowConn struct {
	net.PacketConn
	packet time.Duration
}

func (c slowConn) WriteTo(b []byte, to net.Addr) (int, error) {
	time.Sleep(c.packet)
	return c.PacketConn.WriteTo(b, to)
}

// However long a client takes for its replies, GracefulStop waits for it, and no reply is lost.
func TestGracefulStopWaitsForSlowClient(t *testing.T) {
	for name, c := range map[string]struct {
		packet time.Duration // time for one
		calls  int
		sizes  []int         // of the replies of each call
		pause  time.Duration // before each is received
	}{
		"a slow network":                      {packet: 20 * time.Millisecond, calls: 5, sizes: []int{1 << 20}},
		"a slow network and many small calls": {packet: 20 * time.Millisecond, calls: 100, sizes: []int{30_000}},
		"a slow receiver":                     {calls: 2, sizes: []int{100_000, 100_000, 100_000, 1 << 20}, pause: 20 * time.Second},
		"both":                                {packet: 10 * time.Millisecond, calls: 3, sizes: []int{1000, 300_000, 1 << 20}, pause: 20 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := plainNetwork(t)
				n.lis.pc = slowConn{n.lis.pc, c.packet}
				config, _ := testTLS()
				var returned sync.WaitGroup
				returned.Add(c.calls)
				release := make(chan struct{})
				begun := make(chan struct{}, c.calls)
				srv := serveOn(t, n.lis, service{stream: func(st testpb.TestService_FullDuplexCallServer) error {
					defer returned.Done()
					begun <- struct{}{}
					<-release
					for _, size := range c.sizes {
						if err := st.Send(&testpb.StreamingOutputCallResponse{Payload: payload(size).Payload}); err != nil {
							return err
						}
					}
					return nil
				}}, nearcall.Creds(nearcall.NewTLS(config)))
				client := n.client(t)
				var all sync.WaitGroup
				for range c.calls {
					st, err := client.FullDuplexCall(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					<-begun
					all.Go(func() {
						for _, size := range c.sizes {
							time.Sleep(c.pause)
							if m, err := st.Recv(); err != nil || len(m.Payload.Body) != size {
								t.Errorf("%d bytes, %v, want %d", len(m.GetPayload().GetBody()), err, size)
								return
							}
						}
						if _, err := st.Recv(); err != io.EOF {
							t.Errorf("Recv: %v, want io.EOF", err)
						}
					})
				}
				began := time.Now()
				close(release)
				time.Sleep(time.Second) // windows are full
				srv.GracefulStop()
				t.Logf("GracefulStop took %v", time.Since(began))
				all.Wait()
				if took := time.Since(began); took < 2*closeTimeout {
					t.Errorf("it took only %v", took)
				}
			})
		})
	}
}

// Shutdown waits for the calls, and cuts them off when its context ends.
func TestShutdownWaitsUntilItsContextEnds(t *testing.T) {
	for name, c := range map[string]struct {
		patience time.Duration
		took     time.Duration
		err      error
		call     codes.Code
	}{
		"the call ends":             {time.Minute, 20 * time.Second, nil, codes.OK},
		"the context ends":          {5 * time.Second, 5 * time.Second, context.DeadlineExceeded, codes.Unavailable},
		"the context ended earlier": {0, 0, context.DeadlineExceeded, codes.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := plainNetwork(t)
				config, _ := testTLS()
				var handler context.Context
				srv := serveOn(t, n.lis, service{unary: func(ctx context.Context, _ *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
					handler = ctx
					select {
					case <-ctx.Done():
						return nil, ctx.Err()
					case <-time.After(20 * time.Second):
						return &testpb.SimpleResponse{}, nil
					}
				}}, nearcall.Creds(nearcall.NewTLS(config)))
				call := make(chan error, 1)
				go func() {
					_, err := n.client(t).UnaryCall(t.Context(), empty)
					call <- err
				}()
				synctest.Wait()
				begun := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), c.patience)
				defer cancel()
				if err := srv.Shutdown(ctx); err != c.err {
					t.Errorf("Shutdown returns %v, want %v", err, c.err)
				}
				if took := time.Since(begun); took < c.took || took > c.took+time.Second {
					t.Errorf("Shutdown returned after %v, want %v", took, c.took)
				}
				if err := handler.Err(); c.err != nil && err != context.Canceled {
					t.Errorf("the handler's context ends with %v", err)
				}
				if err := <-call; status.Code(err) != c.call {
					t.Errorf("the call ends with %v, want %v", err, c.call)
				}
			})
		})
	}
}

// A session gives up a peer that takes nothing for closeTimeout. What the peer sends meanwhile
// prolongs that to maxCloseTimeout at most.
func TestASessionGivesUpAPeerThatTakesNothing(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(qs *q.Stream, seconds int) // every second
		want time.Duration
	}{
		"it does nothing": {func(*q.Stream, int) {}, closeTimeout},
		"it only sends":   {func(qs *q.Stream, _ int) { _, _ = qs.Write([]byte{1}) }, maxCloseTimeout},
		"it stops reading": {func(qs *q.Stream, seconds int) {
			if seconds < 20 {
				_, _ = io.ReadFull(qs, make([]byte, 100_000))
			}
		}, 20*time.Second + closeTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, s, w := script(t)
				qs := client.call()
				message := message.Live(payload(4<<20), codec.Proto())
				if err := w.taken[0].Send(&link.Frame{Msg: message, HasMsg: true, End: &link.End{}}); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Second) // until the window is full
				began := time.Now()
				_ = s.Close(errors.New("stopping"))
				for seconds := 0; !link.IsClosed(s.closed); seconds++ {
					c.do(qs, seconds)
					select {
					case <-s.closed:
					case <-time.After(time.Second):
					}
				}
				// A window is announced late, and packets are acknowledged late.
				if took := time.Since(began); took < c.want-2*time.Second || took > c.want+time.Second {
					t.Errorf("it takes %v, want %v", took, c.want)
				}
			})
		})
	}
}

// The client's end of a session is written when its callers have all replies, which they may take
// slowly.
func TestClientRepliesAreWrittenWhenTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 1 << 20
		sessions, accepted := make(chan link.Session, 1), make(transporttest.Accepter, 1)
		n := newNetwork(t, &registry.Settings{}, func(s link.Session) link.Acceptor {
			sessions <- s
			return make(transporttest.Accepter, 1)
		})
		d := n.dialer(t, &registry.Settings{Accept: func(link.Session) link.Acceptor { return accepted }})
		listen := d.listen
		d.listen = func() (net.PacketConn, error) {
			pc, err := listen()
			return slowConn{pc, 20 * time.Millisecond}, err
		}
		client, err := d.Dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = client.Close(errors.New("the test is over")) }()
		st, err := (<-sessions).NewStream(t.Context(), &link.CallHeader{Method: "/a/b", Profile: &link.Profile{}})
		if err != nil {
			t.Fatal(err)
		}
		received := make(chan error, 1)
		go func() {
			received <- st.Recv(&link.Frame{Sink: message.Sink{Dst: new(testpb.SimpleRequest), Codec: codec.Proto(), Limit: 2 * size}})
		}()
		reply := &link.Frame{Msg: message.Live(payload(size), codec.Proto()), HasMsg: true, End: &link.End{}}
		if err := (<-accepted).Send(reply); err != nil {
			t.Fatal(err)
		}
		client.Drain()
		begun := time.Now()
		<-client.Written()
		select {
		case err := <-received:
			if took := time.Since(begun); err != nil || took < 2*closeTimeout {
				t.Errorf("after %v Recv returns %v", took, err)
			}
		default:
			t.Errorf("the reply is not there after %v", time.Since(begun))
		}
	})
}
