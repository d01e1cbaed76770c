package targets

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/orca"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall"
)

// A kind says which servers a fleet has.
type kind string

const (
	ordinary kind = "grpc-go"
	near     kind = "nearcall"
	mixed    kind = "mixed" // the first is nearcall's, and every second one
	unix     kind = "unix"  // nearcall's, at unix sockets

	// inProcess are nearcall's. Its clients reach them by inproc:NAME, the oracle by TCP.
	inProcess kind = "inproc"
)

// everywhere are all kinds.
var everywhere = []kind{ordinary, near, mixed, unix, inProcess}

// A server is a *grpc.Server or a *nearcall.Server.
type server interface {
	grpc.ServiceRegistrar
	Serve(net.Listener) error
	Stop()
	GracefulStop()
}

// A Server is one of a fleet. It can be stopped and started again at its address.
type Server struct {
	server
	pb.UnimplementedTestServiceServer
	Name     string
	Addr     string
	Register func(grpc.ServiceRegistrar) // further services; set before Start
	Age      time.Duration               // of connections; set before Start, 0 means without a limit
	Mutual   bool                        // TLS asks clients for a certificate; set before Start
	c        *C
	kind     kind
	network  string
	path     string
	gate     gate
	served   chan struct{}
	Offers   bool // its listener is not wrapped, so it offers nearer paths; set before Start

	calls atomic.Int64 // that handlers have begun
	conns atomic.Int64 // that are open

	mu       sync.Mutex
	released chan struct{}  // what handlers wait for that should wait
	waiting  int            // such handlers
	fails    codes.Code     // what handlers fail with
	trailer  metadata.MD    // what handlers add to their trailers
	load     float64        // what handlers report of each call; 0 for nothing
	spoken   map[string]int // calls by what the client spoke: "nearcall" or "grpc-go"
}

// ips are a loopback address for each server, so that a server can come back to its port.
var ips atomic.Uint32

func nextIP() string {
	n := ips.Add(1)
	return net.IPv4(127, byte(1+n>>16), byte(n>>8), byte(n)).String()
}

// Fleet starts the setup's servers: s0, s1 and so on.
func (c *C) Fleet(edit ...func(*Server)) []*Server {
	var out []*Server
	for i := range c.Size {
		out = append(out, c.Serve(fmt.Sprint("s", i), i, edit...))
	}
	return out
}

// Serve starts a server of the setup's kind. If its kind is mixed, i tells which.
func (c *C) Serve(name string, i int, edit ...func(*Server)) *Server {
	s := c.NewServer(name, i, nextIP()+":0", edit...)
	s.Start()
	return s
}

// NewServer returns a server that does not listen yet.
func (c *C) NewServer(name string, i int, address string, edit ...func(*Server)) *Server {
	s := &Server{c: c, Name: name, Addr: address, kind: c.Kind, network: "tcp", released: make(chan struct{})}
	switch c.Kind {
	case inProcess:
		s.kind, s.path = near, fmt.Sprint("inproc:targets-", ips.Add(1))
	case mixed:
		s.kind = []kind{near, ordinary}[i%2]
	case unix:
		dir, err := os.MkdirTemp("", "targets")
		if err != nil {
			panic(err)
		}
		c.Cleanup(func() { os.RemoveAll(dir) })
		s.kind, s.network, s.path = near, "unix", filepath.Join(dir, "s")
		s.Addr = "unix:" + s.path
		c.Call(s.Addr, name)
	}
	for _, f := range edit {
		f(s)
	}
	c.Cleanup(func() {
		s.Release()
		s.Down()
	})
	return s
}

// Start serves the address, and chooses a port if it has none.
func (s *Server) Start() {
	address := s.Addr
	if s.network == "unix" {
		address = s.path
	}
	lis, err := net.Listen(s.network, address)
	if err != nil {
		panic(err)
	}
	if s.network == "tcp" {
		s.Addr = lis.Addr().String()
		s.c.Call(s.Addr, s.Name)
		if s.path != "" {
			s.c.Call(s.path, s.Name)
		}
		host, port, _ := net.SplitHostPort(s.Addr)
		s.c.Call(host+"%3A"+port, s.Name)
	}
	creds := insecure.NewCredentials()
	if s.c.TLS {
		config := serverTLS(lis.Addr())
		if s.Mutual {
			config.ClientAuth, config.ClientCAs = tls.RequireAndVerifyClientCert, roots()
		}
		creds = credentials.NewTLS(config)
	}
	ends := keepalive.ServerParameters{MaxConnectionAge: s.Age}
	switch s.kind {
	case near:
		s.server = nearcall.NewServer(nearcall.Creds(creds), nearcall.StatsHandler(connections{s}), nearcall.KeepaliveParams(ends),
			nearcall.GRPCServerOptions(orca.CallMetricsServerOption(nil)))
	default:
		s.server = grpc.NewServer(grpc.Creds(creds), grpc.StatsHandler(connections{s}), grpc.KeepaliveParams(ends),
			orca.CallMetricsServerOption(nil))
	}
	pb.RegisterTestServiceServer(s.server, s)
	if s.Register != nil {
		s.Register(s.server)
	}
	served, srv := make(chan struct{}), s.server
	s.served = served
	var serving sync.WaitGroup
	if !s.Offers {
		lis = gatedListener{lis, &s.gate}
	}
	serving.Go(func() { _ = srv.Serve(lis) })
	if s.c.Kind == inProcess {
		lis, err := nearcall.Listen(s.path)
		if err != nil {
			panic(err)
		}
		serving.Go(func() { _ = srv.Serve(lis) })
	}
	go func() {
		serving.Wait()
		close(served)
	}()
}

// Down stops the server, and waits until its port is free.
func (s *Server) Down() {
	s.gate.open()
	if s.server != nil {
		s.Stop()
		<-s.served
	}
}

// Hold makes new connections wait before the server sees them, until Resume.
func (s *Server) Hold()   { s.gate.shut() }
func (s *Server) Resume() { s.gate.open() }

// Release lets the handlers go on that wait, and those that would wait later.
func (s *Server) Release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.released:
	default:
		close(s.released)
	}
}

// Waiting returns the number of handlers that wait.
func (s *Server) Waiting() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.waiting
}

// Fails makes handlers fail with a code.
func (s *Server) Fails(code codes.Code) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fails = code
}

// Trailer makes handlers add md to their trailers.
func (s *Server) Trailer(md metadata.MD) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trailer = md
}

// Load makes handlers report the load of their server, as orca does.
func (s *Server) Load(load float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.load = load
}

func (s *Server) address() resolver.Address {
	if s.c.Kind == inProcess && s.c.dialer.near {
		return resolver.Address{Addr: s.path}
	}
	return resolver.Address{Addr: s.Addr}
}

// addresses are those of servers, each its own endpoint.
func addresses(servers ...*Server) (out []resolver.Address) {
	for _, s := range servers {
		out = append(out, s.address())
	}
	return out
}

// refused returns an address at which nothing listens.
func (c *C) refused(name string) resolver.Address {
	address := nextIP() + ":1"
	c.Call(address, name)
	return resolver.Address{Addr: address}
}

// handle does what the call's metadata ask for:
//
//	fail CODE    fail
//	fail-first   fail with Unavailable, unless this is a retry
//	wait         wait for Release
//	trailer VALUE set the trailer "trailer"
func (s *Server) handle(ctx context.Context) error {
	s.calls.Add(1)
	md, _ := metadata.FromIncomingContext(ctx)
	trailer := metadata.Pairs("served-by", s.Name)
	if v := md["trailer"]; len(v) > 0 {
		trailer.Append("trailer", v...)
	}
	agent := strings.Join(md["user-agent"], " ")
	spoken, _, _ := strings.Cut(agent[strings.LastIndex(agent, " ")+1:], "/")
	s.mu.Lock()
	if s.spoken == nil {
		s.spoken = make(map[string]int)
	}
	s.spoken[spoken]++
	fails := s.fails
	trailer = metadata.Join(trailer, s.trailer)
	load := s.load
	s.mu.Unlock()
	_ = grpc.SetTrailer(ctx, trailer)
	if r := orca.CallMetricsRecorderFromContext(ctx); r != nil && load > 0 {
		r.SetCPUUtilization(load)
		r.SetQPS(100)
	}
	if fails != codes.OK {
		return status.Error(fails, "the server fails")
	}
	if len(md["wait"]) > 0 {
		s.mu.Lock()
		s.waiting++
		released := s.released
		s.mu.Unlock()
		select {
		case <-released:
		case <-ctx.Done():
		}
		s.mu.Lock()
		s.waiting--
		s.mu.Unlock()
	}
	if v := md["fail"]; len(v) > 0 {
		code, _ := strconv.Atoi(v[0])
		return status.Error(codes.Code(code), "the handler fails")
	}
	if len(md["fail-first"]) > 0 && len(md["grpc-previous-rpc-attempts"]) == 0 {
		return status.Error(codes.Unavailable, "the first attempt fails")
	}
	return nil
}

// EmptyCall shows what the handler sees of the call's metadata.
func (s *Server) EmptyCall(ctx context.Context, _ *pb.Empty) (*pb.Empty, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	return &pb.Empty{}, grpc.SetHeader(ctx, metadata.MD{"authority": md[":authority"], "attempts": md["grpc-previous-rpc-attempts"], "seen": md["show"]})
}

func (s *Server) UnaryCall(ctx context.Context, m *pb.SimpleRequest) (*pb.SimpleResponse, error) {
	if err := s.handle(ctx); err != nil {
		return nil, err
	}
	return &pb.SimpleResponse{ServerId: s.Name, Payload: m.GetPayload()}, nil
}

func (s *Server) FullDuplexCall(st grpc.BidiStreamingServer[pb.StreamingOutputCallRequest, pb.StreamingOutputCallResponse]) error {
	if err := s.handle(st.Context()); err != nil {
		return err
	}
	for {
		if _, err := st.Recv(); err != nil {
			return nil
		}
		if err := st.Send(&pb.StreamingOutputCallResponse{Payload: &pb.Payload{Body: []byte(s.Name)}}); err != nil {
			return err
		}
	}
}

// connections counts a server's connections.
type connections struct{ s *Server }

func (connections) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (connections) HandleRPC(context.Context, stats.RPCStats)                         {}
func (connections) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (h connections) HandleConn(_ context.Context, s stats.ConnStats) {
	switch s.(type) {
	case *stats.ConnBegin:
		h.s.conns.Add(1)
	case *stats.ConnEnd:
		h.s.conns.Add(-1)
	}
}

// A gate is open, or shut until it is opened.
type gate struct {
	mu   sync.Mutex
	held chan struct{} // closed when the gate opens; nil while it is open
}

func (g *gate) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.held == nil {
		g.held = make(chan struct{})
	}
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.held != nil {
		close(g.held)
		g.held = nil
	}
}

func (g *gate) pass() {
	g.mu.Lock()
	held := g.held
	g.mu.Unlock()
	if held != nil {
		<-held
	}
}

// A gatedListener accepts connections while its gate is open. The system completes the others' TCP handshakes.
type gatedListener struct {
	net.Listener
	gate *gate
}

func (l gatedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.gate.pass()
	}
	return c, err
}

// authority is the certificate authority of all servers.
var authority = sync.OnceValue(func() tls.Certificate {
	return certificate(&x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}, nil)
})

// certificate returns a certificate that parent has signed, or the template itself if parent is nil.
func certificate(template *x509.Certificate, parent *tls.Certificate) tls.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	template.SerialNumber, template.NotAfter = big.NewInt(1), time.Now().Add(time.Hour)
	signer, by := template, key
	if parent != nil {
		signer, by = parent.Leaf, parent.PrivateKey.(*ecdsa.PrivateKey)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, signer, key.Public(), by)
	if err != nil {
		panic(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		panic(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

// serverTLS is for a server at address. Its certificate has the names that cases use.
func serverTLS(address net.Addr) *tls.Config {
	template := &x509.Certificate{DNSNames: []string{"svc", "localhost", "*.test"}}
	if a, ok := address.(*net.TCPAddr); ok {
		template.IPAddresses = []net.IP{a.IP}
	}
	ca := authority()
	return &tls.Config{Certificates: []tls.Certificate{certificate(template, &ca)}}
}

// clientCreds are those of the setup.
func (c *C) clientCreds() credentials.TransportCredentials {
	if !c.TLS {
		return insecure.NewCredentials()
	}
	return credentials.NewTLS(&tls.Config{RootCAs: roots()})
}

// roots are what proves certificates.
func roots() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(authority().Leaf)
	return pool
}
