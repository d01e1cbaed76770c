package test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/testing/child"
	"github.com/nearcall/nearcall/internal/testing/needs"
)

// Serve and ServeConn return when Stop or GracefulStop has done its work, and not before.
func TestServeReturnsWhenTheServerHasStopped(t *testing.T) {
	for how, serveOn := range map[string]func(*nearcall.Server) (net.Conn, <-chan error){
		"Serve": func(srv *nearcall.Server) (net.Conn, <-chan error) {
			lis, served := bufconn.Listen(1<<16), make(chan error, 1)
			go func() { served <- srv.Serve(lis) }()
			conn, _ := lis.Dial()
			return conn, served
		},
		"ServeConn": func(srv *nearcall.Server) (net.Conn, <-chan error) {
			near, far := net.Pipe()
			return near, serveConn(srv, far)
		},
	} {
		for name, graceful := range map[string]bool{"Stop": false, "GracefulStop": true} {
			t.Run(how+"/"+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					e, running, release := waiting()
					srv := serve(t, e)
					conn, served := serveOn(srv)
					call := invoke(t.Context(), dial(t, "tcp:localhost:1", nearcall.WithContextDialer(once(conn))))
					<-running
					want := codes.Unavailable
					if graceful {
						want = codes.OK
						go srv.GracefulStop()
						synctest.Wait()
						select {
						case err := <-served:
							t.Fatalf("%s returned %v while a call ran", how, err)
						default:
						}
						close(release)
					} else {
						srv.Stop()
					}
					wantCode(t, <-call, want)
					if err := <-served; err != nil {
						t.Errorf("%s: %v", how, err)
					}
				})
			})
		}
	}
}

// Environment variables of the child process that calls GracefulStop.
const (
	goodbyeOver = "NEARCALL_TEST_GOODBYE"        // the network
	goodbyeAt   = "NEARCALL_TEST_GOODBYE_TARGET" // where it listens
)

// A oneWay listener returns connections without CloseWrite, as many wrapping listeners
// do.
type oneWay struct{ net.Listener }

func (l oneWay) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	return struct{ net.Conn }{conn}, err
}

// goodbyeCalls is how many calls a child waits for before it calls GracefulStop.
const goodbyeCalls = 4

// TestSayGoodbyeInAProcess is a server that exits as soon as Serve returns, as programs do
// whose signal handler calls GracefulStop. The handlers of its calls return during
// GracefulStop.
func TestSayGoodbyeInAProcess(t *testing.T) {
	network := os.Getenv(goodbyeOver)
	if network == "" {
		t.Skip("only in a child process")
	}
	running, release := make(chan struct{}, goodbyeCalls), make(chan struct{})
	e := farewells{running: running, release: release}
	var opts []nearcall.ServerOption
	if network == "tls" {
		opts = append(opts, nearcall.Creds(credentials.NewTLS(newCertificates(t).server(nil))))
	}
	srv := nearcall.NewServer(opts...)
	testpb.RegisterTestServiceServer(srv, e)
	lis, err := nearcall.Listen(os.Getenv(goodbyeAt))
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() {
		if network == "one way" {
			served <- srv.Serve(oneWay{lis})
		} else {
			served <- srv.Serve(lis)
		}
	}()
	child.Ready(lis.Target())
	for range goodbyeCalls {
		<-running
	}
	go func() {
		for conn := srv.Client(); status.Code(conn.Invoke(t.Context(), "/not/there", nil, nil)) != codes.Unavailable; {
			time.Sleep(time.Millisecond) // until GracefulStop has begun
		}
		close(release)
	}()
	go srv.GracefulStop()
	<-served
	os.Exit(0) // at once, without waiting for connections
}

// farewells is a service whose handlers return when release is closed: unary ones with
// the requested number of bytes, streams with that and a status, even if the caller is
// still sending.
type farewells struct {
	testpb.UnimplementedTestServiceServer
	running chan<- struct{}
	release <-chan struct{}
}

func (f farewells) UnaryCall(_ context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	f.running <- struct{}{}
	<-f.release
	return &testpb.SimpleResponse{Payload: payload(int(in.ResponseSize))}, nil
}

func (f farewells) FullDuplexCall(s grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
	in, err := s.Recv()
	if err != nil {
		return err
	}
	f.running <- struct{}{}
	<-f.release
	if err := s.Send(&testpb.StreamingOutputCallResponse{Payload: payload(int(in.ResponseParameters[0].Size))}); err != nil {
		return err
	}
	return status.Error(codes.Aborted, "goodbye")
}

// lastReply makes a unary call. It returns nil if the complete reply arrives.
func lastReply(client testpb.TestServiceClient, size int) error {
	reply, err := client.UnaryCall(context.Background(), &testpb.SimpleRequest{ResponseSize: int32(size)})
	if n := len(reply.GetPayload().GetBody()); err == nil && n != size {
		err = fmt.Errorf("the reply has %d bytes", n)
	}
	return err
}

// lastStatus opens a stream and sends until Send fails. It returns nil if the handler's
// last message and its status arrive.
func lastStatus(client testpb.TestServiceClient, size int) error {
	s, err := client.FullDuplexCall(context.Background())
	if err != nil {
		return err
	}
	var sending sync.WaitGroup
	defer sending.Wait()
	sending.Go(func() {
		in := &testpb.StreamingOutputCallRequest{ResponseParameters: []*testpb.ResponseParameters{{Size: int32(size)}}, Payload: payload(10_000)}
		for s.Send(in) == nil {
		}
	})
	reply, err := s.Recv()
	if n := len(reply.GetPayload().GetBody()); err == nil && n != size {
		err = fmt.Errorf("the message has %d bytes", n)
	}
	for err == nil {
		_, err = s.Recv()
	}
	if status.Code(err) == codes.Aborted {
		return nil
	}
	return err
}

// Replies and statuses of handlers that return during GracefulStop arrive, although the
// process exits right after it.
func TestGracefulStopLosesNoReplyWhereTheProcessThenExits(t *testing.T) {
	for _, network := range networks("unix", "tcp", "tls", "one way") {
		t.Run(network, func(t *testing.T) {
			on := network
			opts := over(network)
			switch network {
			case "tls":
				on = "tcp"
				opts = append(opts, nearcall.WithTransportCredentials(credentials.NewTLS(&tls.Config{InsecureSkipVerify: true})))
			case "one way":
				on = "tcp"
			}
			for range needs.Rounds(5) {
				p, err := child.Start("TestSayGoodbyeInAProcess", goodbyeOver+"="+network, goodbyeAt+"="+targetFor(t, on))
				if err != nil {
					t.Fatal(err)
				}
				lost := make(chan error, goodbyeCalls)
				for _, size := range []int{100, 3 << 20} {
					for name, call := range map[string]func(testpb.TestServiceClient, int) error{"unary": lastReply, "stream": lastStatus} {
						client := dial(t, p.Target, opts...)
						go func() {
							err := call(client, size)
							if err != nil {
								err = fmt.Errorf("%s, %d bytes: %w", name, size, err)
							}
							lost <- err
						}()
					}
				}
				for range goodbyeCalls {
					if err := outcome(t, "a call", lost); err != nil {
						t.Error(err)
					}
				}
				if err := p.Wait(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// A server whose Serve has returned because the listener failed still has connections.
func TestGracefulStopAfterServeReturned(t *testing.T) {
	e, running, release := waiting()
	srv := serve(t, e)
	lis := newClosesOnce(listenTCP(t))
	served := make(chan error, 1)
	go func() { served <- srv.Serve(lis) }()
	call := invoke(t.Context(), dial(t, "tcp:"+lis.Addr().String()))
	outcome(t, "the handler's begin", running)
	lis.fail <- io.ErrUnexpectedEOF
	if err := outcome(t, "Serve", served); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("Serve returns %v", err)
	}
	stopped := make(chan error, 1)
	go func() {
		srv.GracefulStop()
		stopped <- nil
	}()
	close(release)
	wantCode(t, outcome(t, "the call", call), codes.OK)
	_ = outcome(t, "GracefulStop", stopped)
}

// A client that has connected before GracefulStop has a second for its handshake. Then the server
// serves its call, or sends it to a successor.
func TestGracefulStopServesClientsThatHaveConnected(t *testing.T) {
	for name, client := range map[string]func(*testing.T, func(context.Context, string) (net.Conn, error)) testpb.TestServiceClient{
		"nearcall": func(t *testing.T, conn func(context.Context, string) (net.Conn, error)) testpb.TestServiceClient {
			return dial(t, "tcp:localhost:1", nearcall.WithContextDialer(conn))
		},
		"grpc-go": func(t *testing.T, conn func(context.Context, string) (net.Conn, error)) testpb.TestServiceClient {
			cc, err := grpc.NewClient("passthrough:it", grpc.WithTransportCredentials(insecureCreds()), grpc.WithContextDialer(conn))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = cc.Close() })
			return testpb.NewTestServiceClient(cc)
		},
	} {
		for pause, want := range map[time.Duration]codes.Code{900 * time.Millisecond: codes.OK, 1100 * time.Millisecond: codes.Unavailable} {
			t.Run(fmt.Sprintf("%s/%v", name, pause), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					lis, successor := bufconn.Listen(1<<16), bufconn.Listen(1<<16)
					srv := serve(t, echo{})
					start(t, srv, lis)
					start(t, serve(t, echo{}), successor)
					dialled := false
					call := invoke(t.Context(), client(t, func(ctx context.Context, _ string) (net.Conn, error) {
						if dialled {
							return successor.DialContext(ctx)
						}
						dialled = true
						conn, err := lis.DialContext(ctx)
						return &hesitant{Conn: conn, pause: pause}, err
					}))
					synctest.Wait()
					srv.GracefulStop()
					wantCode(t, <-call, want)
					time.Sleep(pause) // the client's write ends, too
				})
			})
		}
	}
}

// A hesitant connection pauses before its first write.
type hesitant struct {
	net.Conn
	pause time.Duration
}

func (c *hesitant) Write(b []byte) (int, error) {
	time.Sleep(c.pause)
	c.pause = 0
	return c.Conn.Write(b)
}
