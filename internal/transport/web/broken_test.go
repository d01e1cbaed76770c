package web_test

import (
	"bufio"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/testing/leak"
	"github.com/nearcall/nearcall/internal/testing/needs"
)

const part = 10_000 // bytes of each message of an answer: more than package http gathers

// answers is a service whose calls take no input that they need, and answer with several
// parts. running counts its handlers.
type answers struct {
	service
	running atomic.Int64
}

func newAnswers() *answers {
	a := new(answers)
	send := func(s interface {
		Send(*testpb.StreamingOutputCallResponse) error
	}) error {
		for range 3 {
			if err := s.Send(&testpb.StreamingOutputCallResponse{Payload: body(part)}); err != nil {
				return err
			}
		}
		return nil
	}
	a.unary = func(_ context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		defer a.run()()
		if in.FillUsername {
			return nil, errors.New(strings.Repeat("no", part))
		}
		return &testpb.SimpleResponse{Payload: body(3 * part)}, nil
	}
	a.output = func(_ *testpb.StreamingOutputCallRequest, s grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
		defer a.run()()
		return send(s)
	}
	a.input = func(s grpc.ClientStreamingServer[testpb.StreamingInputCallRequest, testpb.StreamingInputCallResponse]) error {
		defer a.run()()
		for {
			if _, err := s.Recv(); err == io.EOF {
				return s.SendAndClose(&testpb.StreamingInputCallResponse{AggregatedPayloadSize: 1})
			} else if err != nil {
				return err
			}
		}
	}
	a.bidi = func(s grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
		defer a.run()()
		if _, err := s.Recv(); err != nil {
			return err
		}
		if err := send(s); err != nil {
			return err
		}
		_, err := s.Recv() // the client's end, or that it has left
		return err
	}
	return a
}

func (a *answers) run() (end func()) {
	a.running.Add(1)
	return func() { a.running.Add(-1) }
}

// cache is the description of a service whose method can be called with GET.
var cache = sync.OnceValue(func() *grpc.ServiceDesc {
	level := descriptorpb.MethodOptions_NO_SIDE_EFFECTS
	file, err := protodesc.NewFile(&descriptorpb.FileDescriptorProto{
		Name: proto.String("web_test.proto"), Package: proto.String("web.test"), Dependency: []string{"google/protobuf/wrappers.proto"},
		Service: []*descriptorpb.ServiceDescriptorProto{{
			Name: proto.String("Cache"),
			Method: []*descriptorpb.MethodDescriptorProto{{
				Name: proto.String("Get"), InputType: proto.String(".google.protobuf.BytesValue"), OutputType: proto.String(".google.protobuf.BytesValue"),
				Options: &descriptorpb.MethodOptions{IdempotencyLevel: &level},
			}},
		}},
	}, protoregistry.GlobalFiles)
	if err == nil {
		err = protoregistry.GlobalFiles.RegisterFile(file)
	}
	if err != nil {
		panic(err)
	}
	return &grpc.ServiceDesc{ServiceName: "web.test.Cache", HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{{
		MethodName: "Get",
		Handler: func(any, context.Context, func(any) error, grpc.UnaryServerInterceptor) (any, error) {
			return wrapperspb.Bytes(make([]byte, 3*part)), nil
		},
	}}}
})

// An ask is a request that is answered with 200, or whatever code it says.
type ask struct {
	name, text string
	code       int
}

// asks returns a request of each protocol and each kind of call.
func asks() (all []ask) {
	add := func(name, method, contentType, body string, code int) {
		all = append(all, ask{name, strings.Replace(head(method, fmt.Sprintf("Content-Length: %d", len(body))), "application/json", contentType, 1) + body, code})
	}
	add("Connect, JSON", "UnaryCall", "application/json", "{}", 200)
	add("Connect, JSON, an error", "UnaryCall", "application/json", `{"fillUsername":true}`, 500)
	add("Connect, proto", "UnaryCall", "application/proto", "", 200)
	add("no such method", "NoSuch", "application/json", "{}", 404)
	add("no call", "UnaryCall", "text/plain", "{}", 415)
	all = append(all, ask{"Connect, GET", "GET /web.test.Cache/Get?encoding=proto&message= HTTP/1.1\r\nHost: localhost\r\n\r\n", 200})
	chunks := func(b string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(b), b) }
	for _, contentType := range []string{"application/connect+json", "application/connect+proto", "application/grpc-web+proto", "application/grpc-web+json", "application/grpc-web-text+proto"} {
		message := wrap(0, "")
		if strings.HasSuffix(contentType, "json") {
			message = wrap(0, "{}")
		}
		if strings.Contains(contentType, "text") {
			message = base64.StdEncoding.EncodeToString([]byte(message))
		}
		if !strings.Contains(contentType, "connect") {
			add(contentType+", unary", "UnaryCall", contentType, message, 200)
			add(contentType+", no such method", "NoSuch", contentType, message, 200)
		}
		add(contentType+", server stream", "StreamingOutputCall", contentType, message, 200)
		add(contentType+", client stream", "StreamingInputCall", contentType, message+message, 200)
		add(contentType+", both", "FullDuplexCall", contentType, message, 200)
		open := strings.Replace(head("FullDuplexCall", "Transfer-Encoding: chunked"), "application/json", contentType, 1) + chunks(message)
		all = append(all,
			ask{contentType + ", both, in chunks", open + "0\r\n\r\n", 200},
			ask{contentType + ", both, open", open, 200})
	}
	return all
}

// pipes is a listener whose connections are pipes. A pipe holds nothing: a write ends when the
// client has read it.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
	wrap   func(net.Conn) net.Conn // of the server's end; nil for none
}

func (l *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipes) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *pipes) Addr() net.Addr { return new(net.TCPAddr) }

// dial sends a request. The rest of it is sent while the answer is read.
func (l *pipes) dial(text string) (client net.Conn, sent <-chan struct{}) {
	client, server := net.Pipe()
	if l.wrap != nil {
		server = l.wrap(server)
	}
	l.conns <- server
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.WriteString(client, text)
	}()
	return client, done
}

// serve serves a on pipes.
func serve(t *testing.T, a *answers, opts ...nearcall.ServerOption) (*nearcall.Server, *pipes) {
	t.Helper()
	l := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
	srv := nearcall.NewServer(opts...)
	testpb.RegisterTestServiceServer(srv, a)
	srv.RegisterService(cache(), nil)
	go func() {
		if err := srv.Serve(l); err != nil {
			t.Error(err)
		}
	}()
	return srv, l
}

// A cut is how the writes of a connection fail.
type cut struct {
	net.Conn
	after int   // bytes that are written before
	err   error // of the writes; nil for a client that reads no more
}

func (c *cut) Write(b []byte) (int, error) {
	if len(b) <= c.after || c.err == nil {
		c.after -= len(b)
		return c.Conn.Write(b)
	}
	if c.after == 0 {
		return 0, c.err
	}
	n, err := c.Conn.Write(b[:c.after])
	c.after -= n
	return n, errors.Join(err, c.err)
}

// sizes returns how many bytes of a's answer have been written after each write.
func (a ask) sizes(t *testing.T) (sizes []int) {
	synctest.Test(t, func(t *testing.T) {
		srv, l := serve(t, newAnswers())
		l.wrap = func(c net.Conn) net.Conn { return &counted{c, &sizes} }
		client, sent := l.dial(a.text)
		in := bufio.NewReader(client)
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode != a.code {
			t.Errorf("%s is answered %s", a.name, resp.Status)
		}
		if strings.HasSuffix(a.name, "open") {
			for range 3 { // the handler waits for the client
				if _, err := io.CopyN(io.Discard, resp.Body, part); err != nil {
					t.Fatal(err)
				}
			}
		} else if n, err := io.Copy(io.Discard, resp.Body); err != nil || n == 0 {
			t.Errorf("%s: %d bytes, %v", a.name, n, err)
		}
		<-sent
		_ = client.Close()
		srv.GracefulStop()
	})
	return sizes
}

type counted struct {
	net.Conn
	sizes *[]int
}

func (c *counted) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if last := len(*c.sizes) - 1; err == nil && last >= 0 {
		*c.sizes = append(*c.sizes, (*c.sizes)[last]+n)
	} else if err == nil {
		*c.sizes = append(*c.sizes, n)
	}
	return n, err
}

// TestACallWhoseAnswerCannotBeWrittenEnds tries each protocol, each kind of call and each write
// of the answer, which fails at its begin, within it or at its last byte. The client may have
// left, or may read no more. Then nothing is left of the call, and GracefulStop returns.
func TestACallWhoseAnswerCannotBeWrittenEnds(t *testing.T) {
	for _, a := range asks() {
		t.Run(a.name, func(t *testing.T) {
			sizes := a.sizes(t)
			var places []int
			last := 0
			for _, n := range sizes {
				places = append(places, last, last+(n-last)/2, n-1)
				last = n
			}
			slices.Sort(places)
			places = slices.Compact(places)
			for _, place := range places[:needs.Rounds(len(places))] {
				for _, err := range []error{&net.OpError{Op: "write", Err: syscall.ECONNRESET}, io.EOF, nil} {
					for _, stops := range []bool{false, true} {
						synctest.Test(t, func(t *testing.T) { a.fail(t, place, err, stops) })
					}
				}
			}
		})
	}
}

// fail makes a, whose answer cannot be written after some bytes. A client that reads no more
// stays connected. If stops is set, the server is told to stop before the answer is read.
func (a ask) fail(t *testing.T, after int, err error, stops bool) {
	svc := newAnswers()
	srv, l := serve(t, svc)
	l.wrap = func(c net.Conn) net.Conn { return &cut{c, after, err} }
	client, sent := l.dial(a.text)
	stopped := make(chan struct{})
	stop := func() {
		srv.GracefulStop()
		close(stopped)
	}
	if stops {
		synctest.Wait() // the call runs, and its answer has begun
		go stop()
	}
	_, _ = io.CopyN(io.Discard, client, int64(after)) // which may be all: messages that are written together take fewer bytes
	<-sent
	if !stops {
		time.Sleep(time.Minute) // the server gives the call up
		// A stream that has not ended may wait for its client for ever.
		if n := svc.running.Load(); n > 0 && (err != nil || !strings.Contains(a.name, "stream") && !strings.Contains(a.name, "both")) {
			t.Errorf("%s: the handler runs after the write of byte %d has failed with %v", a.name, after, err)
		}
	}
	if svc.running.Load() > 0 {
		_ = client.Close()
	}
	if !stops {
		go stop()
	}
	select {
	case <-stopped:
	case <-time.After(time.Minute):
		t.Errorf("%s: GracefulStop does not return after the write of byte %d has failed with %v\n%s", a.name, after, err, strings.Join(leak.Find(), "\n\n"))
		srv.Stop()
	}
	_ = client.Close()
	synctest.Wait()
	if n := svc.running.Load(); n > 0 {
		t.Errorf("%s: %d handlers run", a.name, n)
	}
}

// narrow is a listener whose connections hold few bytes that the client has not read.
type narrow struct{ net.Listener }

func (l narrow) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		err = c.(*net.TCPConn).SetWriteBuffer(4 << 10)
	}
	return c, err
}

// TestAClientThatResetsOrHalfClosesLeavesNothing does to real sockets what clients do that leave
// while the answer is written.
func TestAClientThatResetsOrHalfClosesLeavesNothing(t *testing.T) {
	all := asks()
	for name, leave := range map[string]func(*net.TCPConn) error{
		"reset": func(c *net.TCPConn) error {
			_ = c.SetLinger(0)
			return c.Close()
		},
		"close": (*net.TCPConn).Close,
		"half close": func(c *net.TCPConn) error {
			if err := c.CloseWrite(); err != nil {
				return err
			}
			if _, err := io.Copy(io.Discard, c); err != nil && !errors.Is(err, syscall.ECONNRESET) {
				return err
			}
			return c.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			svc := newAnswers()
			lis, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			srv := nearcall.NewServer()
			testpb.RegisterTestServiceServer(srv, svc)
			srv.RegisterService(cache(), nil)
			served := make(chan error, 1)
			go func() { served <- srv.Serve(narrow{lis}) }()
			for _, a := range all {
				c, err := net.Dial("tcp", lis.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				conn := c.(*net.TCPConn)
				_ = conn.SetReadBuffer(4 << 10)
				if _, err := io.WriteString(conn, a.text); err != nil {
					t.Fatal(err)
				}
				if _, err := io.ReadFull(conn, make([]byte, 100)); err != nil { // the rest is being written
					t.Fatalf("%s: %v", a.name, err)
				}
				if err := leave(conn); err != nil {
					t.Errorf("%s: %v", a.name, err)
				}
			}
			leak.Within(t, 30*time.Second, "GracefulStop returns", srv.GracefulStop)
			if err := <-served; err != nil {
				t.Error(err)
			}
			if n := svc.running.Load(); n > 0 {
				t.Errorf("%d handlers run", n)
			}
		})
	}
}
