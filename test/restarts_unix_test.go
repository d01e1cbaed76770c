//go:build unix

package test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/testing/child"
	"github.com/nearcall/nearcall/internal/testing/leak"
)

const (
	restartAt   = "NEARCALL_RESTART_AT" // a generation's target; "3" if it has inherited its socket
	restartsEnv = "NEARCALL_RESTARTS"
)

// TestServeAGeneration is a process of TestRestarts. It stops gracefully when it is told to.
func TestServeAGeneration(t *testing.T) {
	at := os.Getenv(restartAt)
	if at == "" {
		t.Skip("TestRestarts runs it")
	}
	var lis net.Listener
	var err error
	if at == "3" {
		f := os.NewFile(3, "inherited")
		lis, err = net.FileListener(f)
		_ = f.Close()
	} else {
		lis, err = nearcall.Listen(at, nearcall.TakeOver())
	}
	if err != nil {
		t.Fatal(err)
	}
	srv := generation(strconv.Itoa(os.Getpid()))
	served := make(chan error, 1)
	go func() { served <- srv.Serve(lis) }()
	child.Serve(at)
	srv.GracefulStop()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// generation returns a server that says its name.
func generation(name string) *nearcall.Server {
	srv := nearcall.NewServer()
	testpb.RegisterTestServiceServer(srv, echo{unary: func(_ context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		return &testpb.SimpleResponse{Payload: in.Payload, Hostname: name}, nil
	}})
	return srv
}

// TestRestarts restarts a server under load, again and again, in the ways of docs/restarts.md: the
// next process takes the path over, or it inherits the socket. Not a single call may fail.
func TestRestarts(t *testing.T) {
	restarts := 3
	if n, err := strconv.Atoi(os.Getenv(restartsEnv)); err == nil {
		restarts = n
	}
	for _, network := range available(t, networks("unix", "tcp")...) {
		t.Run(network+", inherited", func(t *testing.T) {
			t.Parallel()
			lis, err := nearcall.Listen(targetFor(t, network))
			if err != nil {
				t.Fatal(err)
			}
			f, err := lis.(interface{ File() (*os.File, error) }).File()
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			// The first generation is this process, with its own listener.
			first := generation("first")
			served := make(chan error, 1)
			go func() { served <- first.Serve(lis) }()
			restart(t, network, lis.Target(), restarts, func() (*child.Process, error) {
				return child.StartWith([]*os.File{f}, "TestServeAGeneration", restartAt+"=3")
			}, func() error {
				leak.Within(t, time.Minute, "GracefulStop returns", first.GracefulStop)
				return <-served
			})
		})
		if network == "tcp" {
			continue
		}
		t.Run(network+", taken over", func(t *testing.T) {
			t.Parallel()
			target := targetFor(t, network)
			next := func() (*child.Process, error) {
				return child.Start("TestServeAGeneration", restartAt+"="+target)
			}
			first, err := next()
			if err != nil {
				t.Fatal(err)
			}
			restart(t, network, target, restarts, next, func() error { return first.End(syscall.SIGTERM) })
		})
	}
}

// A process that inherits the socket and fails leaves the server as it was: it accepts connections, and
// stops. exec.Cmd calls Fd of the files that it passes on, which makes those of package net block.
func TestAServerGoesOnWhenTheProcessThatInheritsItsSocketFails(t *testing.T) {
	for _, network := range available(t, networks("unix", "tcp")...) {
		for _, from := range []string{"nearcall.Listen", "package net"} {
			for _, how := range []string{"GracefulStop", "Stop"} {
				t.Run(network+" of "+from+", "+how, func(t *testing.T) {
					var lis net.Listener = listen(t, targetFor(t, network))
					target := lis.(nearcall.Listener).Target()
					if from == "package net" {
						f, err := lis.(interface{ File() (*os.File, error) }).File()
						if err != nil {
							t.Fatal(err)
						}
						if lis, err = net.FileListener(f); err != nil {
							t.Fatal(err)
						}
						_ = f.Close()
						target = strings.Replace(target, "shm:", "unix:", 1) // Serve cannot know it
					}
					srv := generation("first")
					served := make(chan error, 1)
					go func() { served <- srv.Serve(lis) }()
					call := func() {
						_, err := dial(t, target).UnaryCall(t.Context(), &testpb.SimpleRequest{})
						wantCode(t, err, codes.OK)
					}
					call()
					pass := func() {
						f, err := lis.(interface{ File() (*os.File, error) }).File()
						if err != nil {
							t.Fatal(err)
						}
						_ = f.Fd()
						_ = f.Close()
					}
					pass()
					call() // after it the server waits for the next connection
					call()
					pass()
					if how == "Stop" {
						leak.Within(t, time.Minute, how+" returns", srv.Stop)
					} else {
						leak.Within(t, time.Minute, how+" returns", srv.GracefulStop)
					}
					if err := <-served; err != nil {
						t.Error(err)
					}
				})
			}
		}
	}
}

// restart makes calls to target while it replaces the server again and again: next starts another
// one, and end stops the first.
func restart(t *testing.T, network, target string, restarts int, next func() (*child.Process, error), end func() error) {
	l := &load{network: network, target: target, stop: make(chan struct{})}
	l.begin(t)
	defer l.end()
	l.await(t, "")
	for range restarts {
		p, err := next()
		if err != nil {
			t.Fatal(err)
		}
		if err := end(); err != nil {
			t.Error(err)
		}
		end = func() error { return p.End(syscall.SIGTERM) }
		if l.await(t, strconv.Itoa(p.Pid())); t.Failed() {
			break
		}
	}
	l.end()
	if err := end(); err != nil {
		t.Error(err)
	}
	t.Logf("%d calls", l.calls.Load())
}

// A load is clients that call without a pause, and fail the test if a call fails.
type load struct {
	network, target string

	calls   atomic.Int64
	callers []*atomic.Value // for each caller, the server that answered it last
	all     sync.WaitGroup
	stop    chan struct{}
	stopped sync.Once
}

// begin starts callers that keep their connection and others that make one for each call, of
// nearcall and of grpc-go.
func (l *load) begin(t *testing.T) {
	near := func() (grpc.ClientConnInterface, func() error, error) {
		conn, err := nearcall.NewClient(l.target, over(l.network)...)
		return conn, conn.Close, err
	}
	far := func() (grpc.ClientConnInterface, func() error, error) {
		conn, err := grpc.NewClient(grpcTarget(l.target), grpc.WithTransportCredentials(insecureCreds()))
		return conn, conn.Close, err
	}
	for _, dial := range []func() (grpc.ClientConnInterface, func() error, error){near, far} {
		if l.network == "shm" {
			dial = near // the server takes no others
		}
		conn, end, err := dial()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = end() })
		client := testpb.NewTestServiceClient(conn)
		l.caller(t, func() (string, error) { return l.unary(client) })
		l.caller(t, func() (string, error) { return l.stream(client) })
		l.caller(t, func() (string, error) {
			conn, end, err := dial()
			if err != nil {
				return "", err
			}
			defer end()
			return l.unary(testpb.NewTestServiceClient(conn))
		})
	}
	if l.network != "shm" { // whose server takes no others
		l.beginWeb(t)
	}
}

// beginWeb starts callers over HTTP/2 that net/http serves: one keeps its connection, and another
// makes one for each call.
func (l *load) beginWeb(t *testing.T) {
	dial := func() *http.Client {
		tr := &http.Transport{Protocols: new(http.Protocols)}
		tr.Protocols.SetUnencryptedHTTP2(true)
		tr.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			network, address, _ := strings.Cut(l.target, ":")
			return new(net.Dialer).DialContext(ctx, network, address)
		}
		return &http.Client{Transport: tr, Timeout: time.Minute}
	}
	kept := dial()
	t.Cleanup(kept.CloseIdleConnections)
	l.caller(t, func() (string, error) { return byJSON(kept) })
	l.caller(t, func() (string, error) {
		client := dial()
		defer client.CloseIdleConnections()
		return byJSON(client)
	})
}

// byJSON makes a call and returns the name of the server that answered it.
func byJSON(client *http.Client) (string, error) {
	resp, err := client.Post("http://server/grpc.testing.TestService/UnaryCall", "application/json", strings.NewReader("{}"))
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s, %q, %v", resp.Status, b, err)
	}
	var reply testpb.SimpleResponse
	err = protojson.Unmarshal(b, &reply)
	return reply.GetHostname(), err
}

// grpcTarget returns the target of the same socket for grpc-go.
func grpcTarget(target string) string {
	if address, ok := strings.CutPrefix(target, "tcp:"); ok {
		return "passthrough:" + address
	}
	return target
}

func (l *load) caller(t *testing.T, call func() (who string, err error)) {
	last := new(atomic.Value)
	last.Store("nobody")
	l.callers = append(l.callers, last)
	l.all.Go(func() {
		for {
			select {
			case <-l.stop:
				return
			default:
			}
			who, err := call()
			if err != nil {
				t.Errorf("a call failed, after %s had answered: %v", last.Load(), err)
				return
			}
			l.calls.Add(1)
			last.Store(who)
		}
	})
}

// unary makes a call and returns the name of the server that answered it.
func (l *load) unary(client testpb.TestServiceClient) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	reply, err := client.UnaryCall(ctx, &testpb.SimpleRequest{Payload: payload(100)})
	return reply.GetHostname(), err
}

// stream makes a call in both directions, and then a unary one.
func (l *load) stream(client testpb.TestServiceClient) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s, err := client.FullDuplexCall(ctx)
	if err != nil {
		return "", err
	}
	for range 10 {
		if err := s.Send(&testpb.StreamingOutputCallRequest{Payload: payload(1000)}); err != nil && err != io.EOF {
			return "", err
		}
		if _, err := s.Recv(); err != nil {
			return "", err
		}
	}
	if err := s.CloseSend(); err != nil {
		return "", err
	}
	if _, err := s.Recv(); err != io.EOF {
		return "", fmt.Errorf("the stream's end: %w", err)
	}
	return l.unary(client)
}

// await waits until each caller has an answer from who, of anybody if who is empty.
func (l *load) await(t *testing.T, who string) {
	for i, last := range l.callers {
		for begun := time.Now(); !t.Failed(); time.Sleep(time.Millisecond) {
			if got := last.Load(); got == who || who == "" && got != "nobody" {
				break
			}
			if time.Since(begun) > time.Minute {
				t.Errorf("caller %d: %v has answered last, want %s", i, last.Load(), who)
			}
		}
	}
}

// end stops the callers and waits for them.
func (l *load) end() {
	l.stopped.Do(func() { close(l.stop) })
	l.all.Wait()
}
