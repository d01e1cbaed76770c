package promises

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/keepalive"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/testing/needs"
)

// A face is a way in which calls reach a server.
type face struct {
	name    string
	target  string                  // what the server listens on; a scheme of files alone gets a path
	options []nearcall.ServerOption // that the face needs
	serve   func(*world)            // makes the server reachable; nil for its Serve
	dial    func(*world, *line) caller
	pings   func(*world) pinger // a client that sends PINGs; nil if the face has none
	refuse  refusal

	silenced bool   // clients connect by their line, which can be silenced
	network  string // of the peer's address that handlers see
	auth     string // the AuthType of that peer
	travels  string // the nearest path that the client logs

	timers      bool // grpc-go serves the calls: it has two timers for a deadline, and one of them cancels
	noOutHeader bool // grpc-go's ServeHTTP answers, which reports no header that goes with a message
}

// uploads returns the method that upload calls.
func (f *face) uploads() string {
	if f.name == cpp {
		return pb.TestService_FullDuplexCall_FullMethodName // whose client need not end what it sends
	}
	return pb.TestService_StreamingInputCall_FullMethodName
}

// faces are all of them. A face needs a row in the table.
var faces = []face{
	{name: "Server.Client", serve: func(*world) {}, dial: inServer, network: "inproc", auth: "local"},
	{name: "inproc", target: "inproc:", dial: dial(), network: "inproc", auth: "local"},
	{name: "shm", target: "shm:", dial: dial(), pings: ownPings(openShm), refuse: noShm, network: "shm", auth: "local"},
	{name: "unix", target: "unix:", dial: dial(nearcall.WithDisableSharedMemory()), pings: ownPings(openSocket), refuse: garbage, silenced: true, network: "unix", auth: "local"},
	{name: "tcp", target: "tcp:127.0.0.1:0", dial: dial(), pings: ownPings(openSocket), refuse: garbage, silenced: true, network: "tcp", auth: "insecure"},
	{name: "tls", target: "tcp:127.0.0.1:0", options: secured, dial: dial(trusting), pings: ownPings(openTLS("nearcall/1")), refuse: noTLS, silenced: true, network: "tcp", auth: "tls"},
	{name: "ws", target: "ws://127.0.0.1:0/", dial: dial(), pings: ownPings(openWebSocket), refuse: garbage, silenced: true, network: "tcp", auth: "insecure"},
	{name: "wss", target: "wss://127.0.0.1:0/", options: secured, dial: dial(trusting), pings: ownPings(openWebSocket), refuse: noTLS, silenced: true, network: "tcp", auth: "tls"},
	{name: "quic", target: "quic:127.0.0.1:0", options: secured, dial: dial(trusting), refuse: noTrust, network: "udp", auth: "tls"},
	{name: "ServeConn", serve: serveConns, dial: dial(), pings: ownPings(openSocket), refuse: garbage, silenced: true, network: "tcp", auth: "insecure"},
	{name: "near, shm", target: "tcp:127.0.0.1:0", options: aged, dial: dial(near), pings: ownPings(openNear), refuse: garbage, network: "tcp", auth: "insecure", travels: "shm"},
	{name: "near, inproc", target: "tcp:127.0.0.1:0", dial: dial(near), refuse: garbage, network: "tcp", auth: "insecure", travels: "inproc"},
	{name: "grpc", target: "tcp:127.0.0.1:0", dial: dialGRPC(nil), pings: http2Pings(openSocket, "application/grpc"), refuse: noOthers, silenced: true, network: "tcp", auth: "insecure", timers: true},
	{name: "grpc, mixed TLS", target: "tcp:127.0.0.1:0", options: secured, dial: dialGRPC([]string{"h2", "http/1.1"}), pings: http2Pings(openTLS("h2", "http/1.1"), "application/grpc"), refuse: noTLS, silenced: true, network: "tcp", auth: "tls", noOutHeader: true},
	{name: "connect/1.1", target: "tcp:127.0.0.1:0", dial: dialWeb(1), refuse: noOthers, silenced: true, network: "tcp", auth: "insecure"},
	{name: "connect/2", target: "tcp:127.0.0.1:0", dial: dialWeb(2), pings: http2Pings(openSocket, "application/proto"), refuse: noOthers, silenced: true, network: "tcp", auth: "insecure"},
	{name: "grpc-web/1.1", target: "tcp:127.0.0.1:0", dial: dialWeb(1, grpcWeb), refuse: noOthers, silenced: true, network: "tcp", auth: "insecure"},
	{name: "grpc-web/2", target: "tcp:127.0.0.1:0", dial: dialWeb(2, grpcWeb), pings: http2Pings(openSocket, "application/grpc-web+proto"), refuse: noOthers, silenced: true, network: "tcp", auth: "insecure"},
	{name: "json/1.1", target: "tcp:127.0.0.1:0", dial: dialWeb(1, json), refuse: noOthers, silenced: true, network: "tcp", auth: "insecure"},
	{name: "json/2", target: "tcp:127.0.0.1:0", dial: dialWeb(2, json), pings: http2Pings(openSocket, "application/json"), refuse: noOthers, silenced: true, network: "tcp", auth: "insecure"},
	{name: "ServeHTTP, grpc", serve: serveHTTP, dial: dialGRPC(nil), silenced: true, network: "tcp", auth: "insecure", noOutHeader: true},
	{name: "ServeHTTP, connect/1.1", serve: serveHTTP, dial: dialWeb(1), silenced: true, network: "tcp", auth: "insecure"},
	{name: "ServeHTTP, connect/2", serve: serveHTTP, dial: dialWeb(2), silenced: true, network: "tcp", auth: "insecure"},
	{name: cpp, target: "unix:", dial: dialCPP, refuse: noShmCPP, network: "shm", auth: "local"},
}

var (
	secured  = []nearcall.ServerOption{nearcall.Creds(nearcall.NewTLS(serverTLS))}
	trusting = nearcall.WithTransportCredentials(nearcall.NewTLS(clientTLS))
	near     = options.SetClient(func(o *options.Client) { o.MovesNearer = true })

	// With an age, the nearest path within a process is shared memory, as between processes.
	aged = []nearcall.ServerOption{nearcall.KeepaliveParams(keepalive.ServerParameters{MaxConnectionAge: time.Hour})}
)

// A caller makes the calls of one client. Metadata of the context is sent.
type caller interface {
	unary(context.Context, *pb.SimpleRequest) (*pb.SimpleResponse, error)

	// upload begins to send a stream, and sends nothing. The result waits for the end.
	upload(context.Context) (end func() error)

	// download begins a stream of the server. The result receives it to its end.
	download(context.Context) (receive func() error)

	close() error
}

// A world is a server, and how clients reach it by a face.
type world struct {
	*testing.T
	*face
	srv     *nearcall.Server
	addr    net.Addr // where the server listens; nil if it does not
	reached string   // the target of clients
	lines   *line    // of all clients, if these do not count their connections
}

// start starts a server that is reached by f.
func (f *face) start(t *testing.T, s *service, opts ...nearcall.ServerOption) *world {
	if runtime.GOOS != "linux" && (f.network == "shm" || f.travels == "shm") {
		t.Skip("shared memory needs Linux")
	}
	w := &world{T: t, face: f}
	opts = append(f.options[:len(f.options):len(f.options)], opts...)
	if f.name == cpp {
		w.lines = new(line)
		opts = append(opts, nearcall.StatsHandler(w.lines))
	}
	w.srv = nearcall.NewServer(opts...)
	pb.RegisterTestServiceServer(w.srv, s)
	t.Cleanup(w.srv.Stop)
	if f.serve != nil {
		f.serve(w)
		return w
	}
	target := f.target
	if strings.HasSuffix(target, ":") {
		target += w.path()
	}
	lis, err := nearcall.Listen(target)
	if err != nil {
		t.Fatal(err)
	}
	w.addr, w.reached = lis.Addr(), lis.Target()
	w.serving(lis, w.srv.Serve)
	return w
}

// path returns a path for a socket. It is short, as the system wants it.
func (w *world) path() string {
	if w.target != "inproc:" {
		needs.UnixSockets(w)
	}
	dir, err := os.MkdirTemp("", "face")
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "s")
}

// serving runs serve until the server is stopped, which must not be an error.
func (w *world) serving(lis net.Listener, serve func(net.Listener) error) {
	served := make(chan error, 1)
	go func() { served <- serve(lis) }()
	w.Cleanup(func() {
		w.srv.Stop()
		if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			w.Errorf("Serve: %v", err)
		}
	})
}

// tcp listens for a face that accepts connections itself.
func (w *world) tcp() net.Listener {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { _ = lis.Close() })
	w.addr, w.reached = lis.Addr(), "tcp:"+lis.Addr().String()
	return lis
}

// serveConns accepts connections and passes them to ServeConn.
func serveConns(w *world) {
	lis := w.tcp()
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := lis.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { _ = w.srv.ServeConn(conn) })
		}
	})
	w.Cleanup(func() {
		_ = lis.Close()
		w.srv.Stop()
		serving.Wait()
	})
}

// serveHTTP has an HTTP server whose mux passes requests on.
func serveHTTP(w *world) {
	lis, mux := w.tcp(), http.NewServeMux()
	mux.Handle("/grpc.testing.TestService/", w.srv)
	site := &http.Server{Handler: mux, Protocols: new(http.Protocols), HTTP2: &http.HTTP2Config{MaxEncoderHeaderTableSize: 1}, ErrorLog: log.New(io.Discard, "", 0)}
	site.Protocols.SetHTTP1(true)
	site.Protocols.SetUnencryptedHTTP2(true)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = site.Serve(lis)
	}()
	w.Cleanup(func() {
		w.srv.Stop()
		_ = site.Close()
		<-served
	})
}

// client returns a client that is closed at the end of the test, and its line.
func (w *world) client() (caller, *line) {
	l := w.lines
	if l == nil {
		l = new(line)
	}
	c := w.dial(w, l)
	w.Cleanup(func() {
		_ = c.close()
		l.end()
	})
	return c, l
}

// A grpcCaller calls with a connection of nearcall or grpc-go.
type grpcCaller struct {
	pb.TestServiceClient
	close_ func() error
}

func (c grpcCaller) close() error { return c.close_() }

func (c grpcCaller) unary(ctx context.Context, in *pb.SimpleRequest) (*pb.SimpleResponse, error) {
	return c.UnaryCall(ctx, in)
}

func (c grpcCaller) upload(ctx context.Context) func() error {
	s, err := c.StreamingInputCall(ctx)
	return func() error {
		if err != nil {
			return err
		}
		return s.RecvMsg(new(pb.StreamingInputCallResponse))
	}
}

func (c grpcCaller) download(ctx context.Context) func() error {
	s, err := c.StreamingOutputCall(ctx, new(pb.StreamingOutputCallRequest))
	return func() error {
		for err == nil {
			_, err = s.Recv()
		}
		if err == io.EOF {
			return nil
		}
		return err
	}
}

// soon lets clients connect again soon.
var soon = grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 5 * time.Millisecond, Multiplier: 1.6, MaxDelay: 100 * time.Millisecond}, MinConnectTimeout: patience}

func inServer(w *world, l *line) caller {
	conn := w.srv.Client(nearcall.WithStatsHandler(l))
	return grpcCaller{pb.NewTestServiceClient(conn), conn.Close}
}

// dial returns a function that dials with nearcall.
func dial(opts ...nearcall.DialOption) func(*world, *line) caller {
	return func(w *world, l *line) caller {
		opts := append(opts[:len(opts):len(opts)], nearcall.WithStatsHandler(l), nearcall.WithConnectParams(soon))
		if w.silenced {
			opts = append(opts, nearcall.WithContextDialer(l.dialAddress))
		}
		conn, err := nearcall.NewClient(w.reached, opts...)
		if err != nil {
			w.Fatal(err)
		}
		return grpcCaller{pb.NewTestServiceClient(conn), conn.Close}
	}
}

// dialGRPC returns a function that dials with grpc-go. protocols are those of TLS.
func dialGRPC(protocols []string) func(*world, *line) caller {
	return func(w *world, l *line) caller {
		creds := insecure.NewCredentials()
		if protocols != nil {
			config := clientTLS.Clone()
			config.NextProtos = protocols
			creds = credentials.NewTLS(config)
		}
		conn, err := grpc.NewClient("passthrough:///"+w.addr.String(), grpc.WithTransportCredentials(creds),
			grpc.WithStatsHandler(l), grpc.WithConnectParams(soon), grpc.WithContextDialer(l.dialAddress))
		if err != nil {
			w.Fatal(err)
		}
		return grpcCaller{pb.NewTestServiceClient(conn), conn.Close}
	}
}

var serverTLS, clientTLS = func() (server, client *tls.Config) {
	pair, roots := certificate()
	return &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: roots, ClientAuth: tls.RequireAndVerifyClientCert},
		&tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: roots}
}()
