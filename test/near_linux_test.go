package test

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/stats"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/targets"
	"github.com/nearcall/nearcall/internal/testing/child"
	"github.com/nearcall/nearcall/internal/testing/leak"
	"github.com/nearcall/nearcall/metrics"
)

// A near dials a target whose connections find the nearer path, and knows the last session.
type near struct {
	target string
	opts   *options.Client
	mu     sync.Mutex
	last   link.Session
}

func (n *near) Dial(ctx context.Context) (link.Session, error) {
	var caller targets.Caller
	if srv := n.opts.PeerServer; srv != nil {
		caller.Accept = func(s link.Session) link.Acceptor { return srv.AcceptClient(s, nil) }
	}
	d, err := targets.Dialer(n.target, n.opts, caller)
	if err != nil {
		return nil, err
	}
	s, err := d.Dial(ctx)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.last = s
	return s, err
}

// path returns the path of the last session, and why there is no nearer one.
func (n *near) path() (path, why string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.last.Peer()
	return p.Path.String(), p.NotNearer
}

// option returns the option with which a connection has n for its dialer.
func (n *near) option() nearcall.DialOption {
	return options.SetClient(func(o *options.Client) { o.MovesNearer, o.SessionDialer, n.opts = true, n, o })
}

// dialNear returns a client of target whose connections find the nearer path.
func dialNear(t *testing.T, target string, opts ...nearcall.DialOption) (testpb.TestServiceClient, *near) {
	t.Helper()
	n := &near{target: target}
	return dial(t, target, append(opts, impatient(), n.option())...), n
}

// wantPath makes a call and checks that it travels by path, and why not nearer.
func wantPath(t *testing.T, client testpb.TestServiceClient, n *near, path, why string) {
	t.Helper()
	wantCode(t, <-invoke(t.Context(), client), codes.OK)
	got, reason := n.path()
	if got != path || !strings.Contains(reason, why) || (why == "") != (reason == "") {
		t.Errorf("the path is %q, because of %q; want %q, because of %q", got, reason, path, why)
	}
}

// A reporter is a service whose unary method tells how the server sees the call, and how many
// connections it has seen. If the request asks for a ServerId, it calls the client's service for
// it.
type reporter struct{ begun, ended atomic.Int32 }

func (*reporter) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (*reporter) HandleRPC(context.Context, stats.RPCStats)                         {}
func (*reporter) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

func (r *reporter) HandleConn(_ context.Context, s stats.ConnStats) {
	switch s.(type) {
	case *stats.ConnBegin:
		r.begun.Add(1)
	case *stats.ConnEnd:
		r.ended.Add(1)
	}
}

func (r *reporter) service() echo {
	return echo{unary: func(ctx context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		p, _ := peer.FromContext(ctx)
		reply := &testpb.SimpleResponse{
			Payload: in.Payload, Hostname: strconv.Itoa(os.Getpid()),
			Username:   fmt.Sprintf("%s %v %v %s", p.Addr.Network(), p.Addr, p.LocalAddr, authOf(p)),
			OauthScope: fmt.Sprint(r.begun.Load(), " ", r.ended.Load()),
		}
		if in.FillServerId {
			back, err := callPeer(ctx).UnaryCall(ctx, &testpb.SimpleRequest{Payload: in.Payload})
			if err != nil {
				return nil, err
			}
			reply.ServerId = fmt.Sprint(len(back.Payload.GetBody()))
		}
		return reply, nil
	}}
}

// authOf tells whom the credentials of p show.
func authOf(p *peer.Peer) string {
	if info, ok := p.AuthInfo.(credentials.TLSInfo); ok {
		return "tls " + info.State.PeerCertificates[0].Subject.CommonName
	}
	return p.AuthInfo.AuthType()
}

// What a child that runs TestServeNear does.
const (
	nearAddress = "NEAR_ADDRESS" // where it listens, with SO_REUSEPORT
	nearTLS     = "NEAR_TLS"     // the directory with the certificates that it uses
	nearMemory  = "NEAR_MEMORY"  // its MaxSharedMemory
	nearAge     = "NEAR_AGE"     // its MaxConnectionAge
	nearUser    = "NEAR_USER"    // the user that it becomes
	nearNetwork = "NEAR_NETWORK" // the process in whose network it has a link, and its listener behind that
)

func TestServeNear(t *testing.T) {
	address := os.Getenv(nearAddress)
	if address == "" {
		t.Skip("only in a child process")
	}
	report := new(reporter)
	opts := []nearcall.ServerOption{nearcall.StatsHandler(report)}
	if dir := os.Getenv(nearTLS); dir != "" {
		certs := readCertificates(t, dir)
		opts = append(opts, nearcall.Creds(credentials.NewTLS(certs.server(certs.roots))))
	}
	if n := os.Getenv(nearMemory); n != "" {
		bytes, _ := strconv.ParseInt(n, 10, 64)
		opts = append(opts, nearcall.MaxSharedMemory(bytes))
	}
	if age, err := time.ParseDuration(os.Getenv(nearAge)); err == nil {
		opts = append(opts, nearcall.KeepaliveParams(keepalive.ServerParameters{MaxConnectionAge: age}))
	}
	if user, err := strconv.Atoi(os.Getenv(nearUser)); err == nil {
		if err := syscall.Setuid(user); err != nil {
			t.Fatal(err)
		}
	}
	var lis net.Listener
	if other := os.Getenv(nearNetwork); other != "" {
		lis = listenBehind(t, other, address)
	} else {
		lis = listenShared(t, address)
	}
	srv := serve(t, report.service(), opts...)
	start(t, srv, lis)
	child.Serve("tcp:" + lis.Addr().String())
	srv.GracefulStop()
}

// listenShared listens with SO_REUSEPORT.
func listenShared(t *testing.T, address string) net.Listener {
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		_ = c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) })
		return err
	}}
	lis, err := config.Listen(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	return lis
}

// serveNear starts a child with TestServeNear, which gets the settings as NAME=VALUE.
func serveNear(t *testing.T, address string, settings ...string) *child.Process {
	t.Helper()
	p, err := child.Start("TestServeNear", append(settings, nearAddress+"="+address)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Signal(os.Kill) })
	return p
}

func endNear(t *testing.T, p *child.Process) {
	t.Helper()
	if err := p.End(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
}

// write stores the certificates for another process.
func (c certificates) write(t *testing.T, root []byte) string {
	dir := t.TempDir()
	key, err := x509.MarshalECPrivateKey(c.me.PrivateKey.(*ecdsa.PrivateKey))
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{"key": key, "root": root, "localhost": c.localhost.Certificate[0], "me": c.me.Certificate[0]} {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func readCertificates(t *testing.T, dir string) certificates {
	read := func(name string) []byte {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	key, err := x509.ParseECPrivateKey(read("key"))
	if err != nil {
		t.Fatal(err)
	}
	root, err := x509.ParseCertificate(read("root"))
	if err != nil {
		t.Fatal(err)
	}
	c := certificates{roots: x509.NewCertPool()}
	c.roots.AddCert(root)
	c.localhost = tls.Certificate{PrivateKey: key, Certificate: [][]byte{read("localhost")}}
	c.me = tls.Certificate{PrivateKey: key, Certificate: [][]byte{read("me")}}
	return c
}

// offeredNames returns the names in this network namespace at which servers take introductions.
func offeredNames(t *testing.T) (names []string) {
	b, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(string(b), "\n") {
		if _, name, ok := strings.Cut(line, "@nearcall-"); ok {
			names = append(names, name)
		}
	}
	return names
}

func TestTheNearerPathIsFound(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "127.0.0.2:0", "[::1]:0", "[::]:0", "0.0.0.0:0"} {
		t.Run(address, func(t *testing.T) {
			hold(t)
			leavesNoMemory(t)
			lis := listen(t, "tcp:"+address)
			start(t, serve(t, echo{}), lis)
			_, port, _ := net.SplitHostPort(lis.Addr().String())
			host, _, _ := net.SplitHostPort(address)
			hosts := []string{host}
			switch address {
			case "[::]:0":
				hosts = []string{"127.0.0.1", "::1", "127.0.0.3"}
			case "0.0.0.0:0":
				hosts = append([]string{"127.0.0.1", "localhost"}, ownAddresses()...)
			}
			for _, host := range hosts {
				client, n := dialNear(t, "tcp:"+net.JoinHostPort(host, port), nearcall.WithTransportCredentials(insecureCreds()))
				wantPath(t, client, n, "inproc", "")
			}
		})
	}
}

// ownAddresses are addresses of this host other than loopback.
func ownAddresses() (all []string) {
	addrs, _ := net.InterfaceAddrs()
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && !n.IP.IsLoopback() {
			all = append(all, n.IP.String())
		}
	}
	return all
}

// A near session has the identity, the addresses and the events of its TCP connection, and all that
// sessions can do.
func TestANearSessionIsThatOfItsTCPConnection(t *testing.T) {
	for _, path := range []string{"inproc", "shm"} {
		for _, secure := range []bool{false, true} {
			t.Run(fmt.Sprint(path, " ", secure), func(t *testing.T) {
				hold(t)
				leavesNoMemory(t)
				testNearSession(t, path, secure)
			})
		}
	}
}

func testNearSession(t *testing.T, path string, secure bool) {
	opts := []nearcall.DialOption{nearcall.WithTransportCredentials(insecureCreds())}
	auth, mine := "insecure", "insecure"
	var settings []string
	var served []nearcall.ServerOption
	if secure {
		certs, root := newCertificatesAndRoot(t)
		auth, mine = "tls alice", "tls localhost"
		opts = []nearcall.DialOption{nearcall.WithTransportCredentials(credentials.NewTLS(certs.client(&certs.me)))}
		settings = []string{nearTLS + "=" + certs.write(t, root)}
		served = append(served, nearcall.Creds(credentials.NewTLS(certs.server(certs.roots))))
	}
	target := ""
	var stop func()
	if path == "shm" {
		p := serveNear(t, "127.0.0.1:0", settings...)
		target, stop = p.Target, func() { endNear(t, p) }
	} else {
		report := new(reporter)
		lis := listen(t, "tcp:127.0.0.1:0")
		srv := serve(t, report.service(), append(served, nearcall.StatsHandler(report))...)
		start(t, srv, lis)
		target = lis.Target()
		stop = func() {
			srv.GracefulStop()
			if b, e := report.begun.Load(), report.ended.Load(); b != 1 || e != 1 {
				t.Errorf("the server has seen %d connections, and the end of %d", b, e)
			}
		}
	}
	events := new(reporter)
	n := &near{target: target}
	own := serve(t, echo{})
	conn, err := nearcall.NewClient(target, append(opts, n.option(), nearcall.WithStatsHandler(events), nearcall.WithServer(own))...)
	if err != nil {
		t.Fatal(err)
	}
	client := testpb.NewTestServiceClient(conn)
	var p peer.Peer
	const large = 3 << 20
	reply, err := client.UnaryCall(t.Context(), &testpb.SimpleRequest{Payload: payload(large), FillServerId: true}, grpc.Peer(&p))
	if err != nil {
		t.Fatal(err)
	}
	if got, why := n.path(); got != path || why != "" {
		t.Errorf("the path is %q, because of %q", got, why)
	}
	address := strings.TrimPrefix(target, "tcp:")
	if p.Addr.Network() != "tcp" || p.Addr.String() != address || authOf(&p) != mine {
		t.Errorf("the client sees %v %v, %s", p.Addr.Network(), p.Addr, authOf(&p))
	}
	if want := fmt.Sprintf("tcp %v %v %s", p.LocalAddr, p.Addr, auth); reply.Username != want {
		t.Errorf("the handler sees %s, want %s", reply.Username, want)
	}
	if len(reply.Payload.Body) != large || reply.ServerId != fmt.Sprint(large) || reply.OauthScope != "1 0" {
		t.Errorf("the reply has %d bytes, the callback had %s; connections: %s", len(reply.Payload.Body), reply.ServerId, reply.OauthScope)
	}
	_, err = client.UnaryCall(t.Context(), &testpb.SimpleRequest{}, grpc.PerRPCCredentials(token{}))
	if want := map[bool]codes.Code{true: codes.OK, false: codes.Unauthenticated}[secure]; true {
		wantCode(t, err, want)
	}
	stream, err := client.FullDuplexCall(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		if err := stream.Send(&testpb.StreamingOutputCallRequest{Payload: payload(i * 10_000)}); err != nil {
			t.Fatal(err)
		}
		if in, err := stream.Recv(); err != nil || len(in.Payload.GetBody()) != i*10_000 {
			t.Fatal(len(in.GetPayload().GetBody()), err)
		}
	}
	if err := stream.CloseSend(); err != nil {
		t.Error(err)
	}
	if _, err := stream.Recv(); err != io.EOF {
		t.Error(err)
	}
	if b, e := events.begun.Load(), events.ended.Load(); b != 1 || e != 0 {
		t.Errorf("the client has seen %d connections, and the end of %d", b, e)
	}
	_ = conn.Close()
	leak.Eventually(t, "the client sees the end", func() bool { return events.ended.Load() == 1 })
	stop()
	own.Stop()
}

// stays returns how many connections are counted that stay over TCP for a reason.
func stays(reason string) (n uint64) {
	for _, why := range metrics.Read().GetNotNearer() {
		if why.GetReason() == reason {
			n += why.GetConnections()
		}
	}
	return n
}

// A server without a listener that it can offer names for, one or a client that has turned memory
// off, and one of another user are called over TCP, and the session says why.
func TestATCPConnectionStaysIfThereIsNothingNearer(t *testing.T) {
	own := func(t *testing.T, lis net.Listener, opts ...nearcall.ServerOption) string {
		report := new(reporter)
		start(t, serve(t, report.service(), append(opts, nearcall.StatsHandler(report))...), lis)
		return "tcp:" + lis.Addr().String()
	}
	of := func(settings ...string) func(*testing.T) string {
		return func(t *testing.T) string {
			p := serveNear(t, "127.0.0.1:0", settings...)
			t.Cleanup(func() { endNear(t, p) })
			return p.Target
		}
	}
	for name, test := range map[string]struct {
		serve     func(*testing.T) string
		opts      []nearcall.DialOption
		path, why string
		reason    string // that is counted
	}{
		"wrapped by the server":  {serve: func(t *testing.T) string { return own(t, wrappingTCP{listenTCP(t)}) }, why: "offers nothing", reason: "no_offer"},
		"closed by its listener": {serve: func(t *testing.T) string { return own(t, closingTCP{listenTCP(t)}) }, why: "offers nothing", reason: "no_offer"},
		"wrapped by the client": {
			serve: of(), why: "neither a TCP socket", reason: "wrapped_connection",
			opts: []nearcall.DialOption{nearcall.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
				c, err := new(net.Dialer).DialContext(ctx, "tcp", address)
				return wrappedConn{c}, err
			})},
		},
		"a proxy":                             {serve: func(t *testing.T) string { return relayTCP(t, of()(t)) }, why: "something is between", reason: "declined"},
		"a proxy to this process":             {serve: func(t *testing.T) string { return relayTCP(t, own(t, listenTCP(t))) }, why: "something is between", reason: "intercepted"},
		"no memory in the server":             {serve: of(nearMemory + "=0"), why: "MaxSharedMemory", reason: "declined"},
		"too little memory in the server":     {serve: of(nearMemory + "=1000"), why: "as much shared memory is used as may be", reason: "declined"},
		"no memory in the client":             {serve: of(), opts: []nearcall.DialOption{nearcall.WithDisableSharedMemory()}, why: "WithDisableSharedMemory", reason: "disabled"},
		"no memory in the client, in process": {serve: func(t *testing.T) string { return own(t, listenTCP(t)) }, opts: []nearcall.DialOption{nearcall.WithDisableSharedMemory()}, path: "inproc"},
		"no memory in the server, in process": {serve: func(t *testing.T) string { return own(t, listenTCP(t), nearcall.DisableSharedMemory()) }, path: "inproc"},
		"another user": {serve: func(t *testing.T) string {
			if os.Getuid() != 0 {
				t.Skip("only root can become another user")
			}
			return of(nearUser + "=1234")(t)
		}, why: "process of user 1234", reason: "other_user"},
	} {
		t.Run(name, func(t *testing.T) {
			hold(t)
			leavesNoMemory(t)
			target, before := test.serve(t), stays(test.reason)
			client, n := dialNear(t, target, test.opts...)
			wantPath(t, client, n, cmp.Or(test.path, "tcp"), test.why)
			if test.reason != "" && stays(test.reason) == before {
				t.Errorf("%s is not counted: %v", test.reason, metrics.Read().GetNotNearer())
			}
			s, err := client.FullDuplexCall(t.Context())
			if err == nil {
				err = s.CloseSend()
			}
			if err == nil {
				_, err = s.Recv()
			}
			if err != io.EOF {
				t.Error(err)
			}
			reply, err := client.UnaryCall(t.Context(), new(testpb.SimpleRequest))
			if err != nil || !strings.HasPrefix(reply.Username, "tcp ") || reply.OauthScope != "1 0" {
				t.Errorf("%v, %v: want one connection of TCP", reply, err)
			}
		})
	}
}

// A client that looks for the nearer path treats other servers as any client does.
func TestOtherServersAreNotConfusedByAClientThatAsks(t *testing.T) {
	hold(t)
	lis := listenTCP(t)
	stop := startGRPC(t, lis, echo{})
	target := "tcp:" + lis.Addr().String()
	client, n := dialNear(t, target)
	wantPath(t, client, n, "other", "")
	stop()

	certs := newCertificates(t)
	inner := listenTCP(t)
	start(t, serve(t, echo{}), tls.NewListener(inner, certs.server(nil)))
	target = "tcp:" + inner.Addr().String()
	client, n = dialNear(t, target, nearcall.WithTransportCredentials(credentials.NewTLS(certs.client(nil))))
	wantPath(t, client, n, "inproc", "")
	client, _ = dialNear(t, target)
	if err := <-invoke(t.Context(), client); err == nil || !strings.Contains(err.Error(), "expects TLS") {
		t.Errorf("without TLS the error is %v", err)
	}
}

// A closingTCP stands for a listener that closes connections it has accepted.
type closingTCP struct{ net.Listener }

// wrappingTCP is a listener whose connections are more than a socket.
type wrappingTCP struct{ net.Listener }

func (w wrappingTCP) Accept() (net.Conn, error) {
	c, err := w.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return wrappedConn{c}, nil
}

type wrappedConn struct{ net.Conn }

// relayTCP passes bytes on to target, and returns its own target.
func relayTCP(t *testing.T, target string) string {
	lis := listenTCP(t)
	var all sync.WaitGroup
	t.Cleanup(func() {
		_ = lis.Close()
		all.Wait()
	})
	all.Go(func() {
		for {
			near, err := lis.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", strings.TrimPrefix(target, "tcp:"))
			if err != nil {
				t.Error(err)
				_ = near.Close()
				continue
			}
			for _, c := range [][2]net.Conn{{near, far}, {far, near}} {
				all.Go(func() {
					_, _ = io.Copy(c[0], c[1])
					_ = c[0].Close()
					_ = c[1].Close()
				})
			}
		}
	})
	return "tcp:" + lis.Addr().String()
}

// A client that does not ask gets no offer, and its server opens no socket.
func TestOnlyClientsThatAskGetAnOffer(t *testing.T) {
	hold(t)
	before := len(offeredNames(t))
	lis := listen(t, "tcp:127.0.0.1:0")
	srv := serve(t, echo{})
	start(t, srv, lis)
	wantCode(t, <-invoke(t.Context(), dial(t, lis.Target())), codes.OK)
	if now := len(offeredNames(t)); now != before {
		t.Errorf("there were %d names, now there are %d", before, now)
	}
	client, n := dialNear(t, lis.Target())
	wantPath(t, client, n, "inproc", "")
	if now := len(offeredNames(t)); now != before+1 {
		t.Errorf("there were %d names, and with an offer there are %d", before, now)
	}
	srv.GracefulStop()
	if now := len(offeredNames(t)); now != before {
		t.Errorf("there were %d names, and after the stop there are %d", before, now)
	}
}

// Of several servers at one port, each offers its own name: a client gets the one that has accepted
// its connection.
func TestServersThatShareAPortOfferTheirOwnNames(t *testing.T) {
	hold(t)
	leavesNoMemory(t)
	lis := listenShared(t, "127.0.0.1:0")
	start(t, serve(t, new(reporter).service()), lis)
	other := serveNear(t, lis.Addr().String())
	reached := make(map[string]int)
	for range 100 {
		func() {
			n := &near{target: other.Target}
			conn, err := nearcall.NewClient(n.target, n.option())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			reply, err := testpb.NewTestServiceClient(conn).UnaryCall(t.Context(), new(testpb.SimpleRequest))
			if err != nil {
				t.Fatal(err)
			}
			path, why := n.path()
			want := "shm"
			if reply.Hostname == strconv.Itoa(os.Getpid()) {
				want = "inproc"
			}
			if reached[path]++; path != want {
				t.Errorf("process %s is reached by %q, because of %q", reply.Hostname, path, why)
			}
		}()
	}
	if reached["inproc"] == 0 || reached["shm"] == 0 {
		t.Errorf("the system has not shared the connections out: %v", reached)
	}
	endNear(t, other)
}

// A server that dies ends its near sessions, and its successor at the port gets new ones.
func TestANearServerThatDiesIsReplaced(t *testing.T) {
	hold(t)
	leavesNoMemory(t)
	server := serveNear(t, "127.0.0.1:0")
	n := &near{target: server.Target}
	conn, err := nearcall.NewClient(n.target, n.option(), impatient())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	client := testpb.NewTestServiceClient(conn)
	wantPath(t, client, n, "shm", "")
	if err := server.End(os.Kill); err != nil {
		t.Fatal(err)
	}
	if !conn.WaitForStateChange(t.Context(), connectivity.Ready) {
		t.Fatal("the client has not noticed")
	}
	wantCode(t, <-invoke(t.Context(), client), codes.Unavailable)
	next := serveNear(t, strings.TrimPrefix(server.Target, "tcp:"))
	wantCode(t, <-invoke(t.Context(), client, grpc.WaitForReady(true)), codes.OK)
	if path, why := n.path(); path != "shm" {
		t.Errorf("the path is %q, because of %q", path, why)
	}
	endNear(t, next)
}

// MaxConnectionAge drains sessions over shared memory too, and no call fails.
func TestNearSessionsHaveAnAge(t *testing.T) {
	hold(t)
	leavesNoMemory(t)
	server := serveNear(t, "127.0.0.1:0", nearAge+"=30ms")
	client, n := dialNear(t, server.Target)
	wantPath(t, client, n, "shm", "")
	first := n.last
	for n.sessionIs(first) {
		wantCode(t, <-invoke(t.Context(), client), codes.OK)
	}
	wantPath(t, client, n, "shm", "")
	endNear(t, server)
}

func (n *near) sessionIs(s link.Session) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.last == s
}

// While a server stops, clients are at every step between their TCP connection and the nearer path.
// Each of their calls is answered, or its client never had a connection.
func TestAGracefulStopLosesNoCallThatMoves(t *testing.T) {
	for _, path := range []string{"inproc", "shm"} {
		t.Run(path, func(t *testing.T) {
			hold(t)
			leavesNoMemory(t)
			for range 5 {
				stopWhileClientsMove(t, path)
			}
		})
	}
}

func stopWhileClientsMove(t *testing.T, path string) {
	var stop func()
	var target string
	if path == "shm" {
		server := serveNear(t, "127.0.0.1:0")
		target, stop = server.Target, func() { endNear(t, server) }
	} else {
		lis := listen(t, "tcp:127.0.0.1:0")
		srv := serve(t, new(reporter).service())
		start(t, srv, lis)
		target, stop = lis.Target(), srv.GracefulStop
	}
	var all sync.WaitGroup
	var answered atomic.Int32
	for range 8 {
		all.Go(func() {
			for {
				n := &near{target: target}
				conn, err := nearcall.NewClient(target, n.option())
				if err != nil {
					t.Error(err)
					return
				}
				_, err = testpb.NewTestServiceClient(conn).UnaryCall(t.Context(), new(testpb.SimpleRequest))
				_ = conn.Close()
				if err == nil {
					answered.Add(1)
					continue
				}
				if n.hadSession() {
					t.Errorf("a call of a client with a session: %v", err)
				}
				return
			}
		})
	}
	leak.Eventually(t, "calls are answered", func() bool { return answered.Load() > 20 })
	stop()
	all.Wait()
}

// hadSession reports whether a dial has succeeded.
func (n *near) hadSession() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.last != nil
}

// The path, and the reason why it is not nearer, are logged once for each address.
func TestThePathIsLoggedOnce(t *testing.T) {
	hold(t)
	recordLogs(t)
	lis := listen(t, "tcp:127.0.0.1:0")
	start(t, serve(t, echo{}), lis)
	behind := relayTCP(t, lis.Target())
	for _, target := range []string{lis.Target(), lis.Target(), behind, behind} {
		client, _ := dialNear(t, target)
		wantCode(t, <-invoke(t.Context(), client), codes.OK)
	}
	lines := logs.with("calls to the server at ")
	if len(lines) != 2 || !strings.HasSuffix(lines[0], "travel by inproc") || !strings.Contains(lines[1], "travel by tcp; why not nearer: ") {
		t.Errorf("the log has %q", lines)
	}
}

// A server behind a link between two network namespaces is on another host, although both are
// on this machine, and although its process runs in the client's namespace.
func TestANetworkNamespaceIsAnotherHost(t *testing.T) {
	hold(t)
	if os.Getuid() != 0 {
		t.Skip("only root can make a network namespace")
	}
	if err := exec.Command("ip", "link", "add", "nearcall0", "type", "veth", "peer", "name", "nearcall1").Run(); err != nil {
		t.Skip("this system makes no veth link: ", err)
	}
	defer func() { _ = exec.Command("ip", "link", "del", "nearcall0").Run() }()
	for _, args := range []string{"addr add 10.213.77.1/30 dev nearcall0", "link set nearcall0 up"} {
		if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %s", args, out)
		}
	}
	server := serveNear(t, "10.213.77.2:0", nearNetwork+"=nearcall1")
	client, n := dialNear(t, server.Target, nearcall.WithTransportCredentials(insecureCreds()))
	wantPath(t, client, n, "tcp", "another host")
	endNear(t, server)
}

// listenBehind listens in a new network namespace, to which it moves the given link. The rest of
// the process stays where it is.
func listenBehind(t *testing.T, device, address string) (lis net.Listener) {
	var all sync.WaitGroup
	all.Go(func() {
		runtime.LockOSThread() // for ever: the thread ends with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Error(err)
			return
		}
		host, _, _ := net.SplitHostPort(address)
		for _, args := range []string{"link set lo up", "addr add " + host + "/30 dev " + device, "link set " + device + " up"} {
			if strings.HasPrefix(args, "addr") {
				move := fmt.Sprintf("nsenter --net=/proc/%d/ns/net ip link set %s netns %d", os.Getppid(), device, unix.Gettid())
				if out, err := exec.Command("sh", "-c", move).CombinedOutput(); err != nil {
					t.Errorf("%s: %s", move, out)
				}
			}
			if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
				t.Errorf("%s: %s", args, out)
			}
		}
		var err error
		if lis, err = net.Listen("tcp", address); err != nil {
			t.Error(err)
		}
	})
	all.Wait()
	if lis == nil {
		t.FailNow()
	}
	return lis
}
