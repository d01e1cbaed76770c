package test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
	"google.golang.org/grpc/test/bufconn"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/testing/looptest"
	"github.com/nearcall/nearcall/internal/testing/needs"
)

// dialGRPC returns an ordinary gRPC client of lis, closed at the end of the test.
func dialGRPC(t testing.TB, lis net.Listener, opts ...grpc.DialOption) testpb.TestServiceClient {
	t.Helper()
	target := "passthrough:" + lis.Addr().String()
	if lis.Addr().Network() == "unix" {
		target = "unix:" + lis.Addr().String()
	}
	if buf, ok := lis.(*bufconn.Listener); ok {
		opts = append(opts, grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return buf.DialContext(ctx) }))
	}
	conn, err := grpc.NewClient(target, append([]grpc.DialOption{grpc.WithTransportCredentials(insecureCreds())}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return testpb.NewTestServiceClient(conn)
}

// callAll makes a call of each kind.
func callAll(ctx context.Context, client testpb.TestServiceClient) error {
	body := payload(100)
	if _, err := client.UnaryCall(ctx, &testpb.SimpleRequest{Payload: body}); err != nil {
		return fmt.Errorf("unary: %w", err)
	}
	out, err := client.StreamingOutputCall(ctx, &testpb.StreamingOutputCallRequest{Payload: body})
	if err != nil {
		return err
	}
	for n := 0; ; n++ {
		if _, err := out.Recv(); err == io.EOF && n == 100 {
			break
		} else if err != nil {
			return fmt.Errorf("server stream, after %d messages: %w", n, err)
		}
	}
	in, err := client.StreamingInputCall(ctx)
	if err != nil {
		return err
	}
	for range 3 {
		if err := in.Send(&testpb.StreamingInputCallRequest{Payload: body}); err != nil {
			return fmt.Errorf("client stream: %w", err)
		}
	}
	if sum, err := in.CloseAndRecv(); err != nil || sum.AggregatedPayloadSize != 300 {
		return fmt.Errorf("client stream: %v, %w", sum, err)
	}
	both, err := client.FullDuplexCall(ctx)
	if err != nil {
		return err
	}
	for range 3 {
		if err := both.Send(&testpb.StreamingOutputCallRequest{Payload: body}); err != nil {
			return fmt.Errorf("bidirectional stream: %w", err)
		}
		if got, err := both.Recv(); err != nil || len(got.Payload.GetBody()) != len(body.Body) {
			return fmt.Errorf("bidirectional stream: %v, %w", got, err)
		}
	}
	if err := both.CloseSend(); err != nil {
		return err
	}
	if _, err := both.Recv(); err != io.EOF {
		return fmt.Errorf("bidirectional stream: %w", err)
	}
	return nil
}

// A shm: listener serves clients in shared memory only.
func TestAListenerOfSharedMemoryRefusesGRPCClients(t *testing.T) {
	if !slices.Contains(networks(), "shm") {
		t.Skip("the system has no shared memory")
	}
	lis := listen(t, targetFor(t, "shm"))
	start(t, serve(t, echo{}), lis)
	wantCode(t, <-invoke(t.Context(), dialGRPC(t, lis)), codes.Unimplemented)
}

// A handler finds the peer as it finds that of nearcall's own clients.
func TestAGRPCClientIsAPeerLikeOthers(t *testing.T) {
	needs.UnixSockets(t)
	var p peer.Peer
	var md metadata.MD
	lis := listen(t, targetFor(t, "unix"))
	start(t, serve(t, seen(&p, &md)), lis)
	wantCode(t, <-invoke(t.Context(), dial(t, lis.Target(), nearcall.WithDisableSharedMemory())), codes.OK)
	own := p
	wantCode(t, <-invoke(t.Context(), dialGRPC(t, lis)), codes.OK)
	if p.AuthInfo != own.AuthInfo || p.LocalAddr.String() != own.LocalAddr.String() {
		t.Errorf("the peer is %v with %v, want %v with %v", p, p.AuthInfo, own, own.AuthInfo)
	}
	if !strings.HasPrefix(md.Get("user-agent")[0], "grpc-go/") {
		t.Errorf("the metadata is %v", md)
	}
}

// Limits and policies of the server apply to ordinary gRPC clients.
func TestOptionsApplyToGRPCClients(t *testing.T) {
	t.Run("GRPCServerOptions", func(t *testing.T) {
		lis := listen(t, "tcp:127.0.0.1:0")
		var tapped atomic.Int32
		start(t, serve(t, echo{}, nearcall.GRPCServerOptions(
			grpc.Creds(credentials.NewTLS(nil)), // which must have no effect
			grpc.InTapHandle(func(ctx context.Context, _ *tap.Info) (context.Context, error) {
				tapped.Add(1)
				return ctx, nil
			}),
		)), lis)
		wantCode(t, <-invoke(t.Context(), dialGRPC(t, lis)), codes.OK)
		if tapped.Load() != 1 {
			t.Errorf("the handle was called %d times", tapped.Load())
		}
	})
	t.Run("GRPCServerOptions and a client that offers HTTP/1.1 too", func(t *testing.T) {
		certs := newCertificates(t)
		lis := listen(t, "tcp:127.0.0.1:0")
		start(t, serve(t, echo{}, nearcall.Creds(nearcall.NewTLS(certs.server(nil))), nearcall.GRPCServerOptions(
			grpc.InTapHandle(func(context.Context, *tap.Info) (context.Context, error) {
				return nil, status.Error(codes.PermissionDenied, "tapped")
			}),
		)), lis)
		config := certs.client(nil)
		config.NextProtos = []string{"h2", "http/1.1"} // for which net/http serves gRPC, without the handle, unless there are options
		client := dialGRPC(t, lis, grpc.WithTransportCredentials(credentials.NewTLS(config)), grpc.WithAuthority("localhost"))
		wantCode(t, <-invoke(t.Context(), client), codes.PermissionDenied)
	})
	t.Run("KeepaliveParams", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			lis := bufconn.Listen(1 << 16)
			start(t, serve(t, echo{}, nearcall.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: time.Minute})), lis)
			conn := dialRaw(t, lis)
			defer conn.Close()
			greet(t, conn)
			begun := time.Now()
			_, _ = io.Copy(io.Discard, conn)
			if d := time.Since(begun).Round(time.Second); d < time.Minute || d > 10*time.Minute {
				t.Errorf("the idle connection ended after %v", d)
			}
		})
	})
}

// The client's part of the start of an HTTP/2 connection.
const preface, noSettings = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "\x00\x00\x00\x04\x00\x00\x00\x00\x00"

func dialRaw(t *testing.T, lis *bufconn.Listener) net.Conn {
	t.Helper()
	conn, err := lis.DialContext(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

func greet(t *testing.T, conn net.Conn) {
	t.Helper()
	if _, err := io.WriteString(conn, preface+noSettings); err != nil {
		t.Error(err)
	}
}

// A server that stops does not wait long for clients that have not said who they are: in GracefulStop
// they have a second for that, and then a second to read why they are refused.
func TestStoppingDoesNotWaitForTheHandshakesOfClients(t *testing.T) {
	for name, stop := range map[string]func(*nearcall.Server){"Stop": (*nearcall.Server).Stop, "GracefulStop": (*nearcall.Server).GracefulStop} {
		for said, first := range map[string]string{"nothing": "", "no settings of HTTP/2": preface} {
			t.Run(name+"/"+said, func(t *testing.T) {
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
					begun := time.Now()
					stop(srv)
					if d := time.Since(begun); d > 2*time.Second || name == "Stop" && d > 0 {
						t.Errorf("it takes %v", d)
					}
				})
			})
		}
	}
}

// The first bytes of a connection may arrive one by one.
func TestAPrefaceMayArriveInPieces(t *testing.T) {
	lis := bufconn.Listen(1 << 16)
	start(t, serve(t, echo{}), lis)
	slow := grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
		conn, err := lis.DialContext(ctx)
		return byteByByte{conn}, err
	})
	if err := callAll(t.Context(), dialGRPC(t, listenTCP(t), slow)); err != nil {
		t.Error(err)
	}
}

// A byteByByte is a connection that writes single bytes.
type byteByByte struct{ net.Conn }

func (c byteByByte) Write(b []byte) (n int, err error) {
	for i := range b {
		if _, err := c.Conn.Write(b[i : i+1]); err != nil {
			return i, err
		}
	}
	return len(b), nil
}

// A message that was prepared for a client of one kind can be sent to one of the other.
func TestAPreparedMessageForClientsOfBothKinds(t *testing.T) {
	type stream = grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]
	streams, release := make(chan stream), make(chan struct{})
	lis := listen(t, "tcp:127.0.0.1:0")
	start(t, serve(t, echo{bidi: func(s stream) error {
		streams <- s
		<-release
		return nil
	}}), lis)
	var subscribers []stream
	var clients []grpc.BidiStreamingClient[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]
	for _, client := range []testpb.TestServiceClient{dial(t, lis.Target()), dialGRPC(t, lis)} {
		s, err := client.FullDuplexCall(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		clients, subscribers = append(clients, s), append(subscribers, outcome(t, "the handler's begin", streams))
	}
	for i, preparer := range subscribers {
		var m nearcall.PreparedMsg
		if err := m.Encode(preparer, &testpb.StreamingOutputCallResponse{Payload: payload(100 + i)}); err != nil {
			t.Fatal(err)
		}
		for j, s := range subscribers {
			if err := s.SendMsg(&m); err != nil {
				t.Fatalf("prepared for client %d, sent to client %d: %v", i, j, err)
			}
			if got, err := clients[j].Recv(); err != nil || len(got.Payload.Body) != 100+i {
				t.Errorf("prepared for client %d, received by client %d: %v, %v", i, j, got, err)
			}
		}
	}
	close(release)
}

// The end of a loop ends the calls of ordinary gRPC clients that run there or wait for it.
func TestTheEndOfALoopEndsCallsOfGRPCClients(t *testing.T) {
	eachLoop(t, func(t *testing.T, kind looptest.Kind) {
		l, end := kind.New()
		srv := nearcall.NewServer()
		began := make(chan struct{})
		testpb.RegisterTestServiceServer(srv.OnLoop(l), echo{bidi: func(s grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
			close(began)
			_, err := s.Recv() // nothing is sent
			return err
		}})
		lis := listen(t, "tcp:127.0.0.1:0")
		start(t, srv, lis)
		client := dialGRPC(t, lis)
		s, err := client.FullDuplexCall(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		outcome(t, "the handler's begin", began)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if err := end(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		if _, err := s.Recv(); status.Code(err) != codes.Unavailable && status.Code(err) != codes.Canceled {
			t.Errorf("the stream ended with %v", err)
		}
		err = <-invoke(t.Context(), client)
		wantCode(t, err, codes.Unavailable)
		if !strings.Contains(err.Error(), "runs on a loop that takes no more tasks") {
			t.Errorf("the caller is told: %v", err)
		}
	})
}

// A slowToClose listener tells when Close is called, and closes when it is let.
type slowToClose struct {
	net.Listener
	closing chan<- net.Listener
	let     <-chan struct{}
}

func (l slowToClose) Close() error {
	l.closing <- l.Listener
	<-l.let
	return l.Listener.Close()
}

// The first ordinary gRPC client of a server that is stopping learns that the server is
// unavailable, and not that it takes no such clients.
func TestTheFirstGRPCClientOfAServerThatStops(t *testing.T) {
	closing, let := make(chan net.Listener, 2), make(chan struct{})
	srv := serve(t, echo{})
	both := []net.Listener{listenTCP(t), listenTCP(t)}
	for _, lis := range both {
		start(t, srv, slowToClose{lis, closing, let})
		wantCode(t, <-invoke(t.Context(), dial(t, "tcp:"+lis.Addr().String())), codes.OK) // it is served
	}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		srv.Stop()
	}()
	open := both[0]
	if <-closing == open {
		open = both[1]
	}
	wantCode(t, <-invoke(t.Context(), dialGRPC(t, open)), codes.Unavailable)
	close(let)
	<-stopped
}
