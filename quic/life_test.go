package quic

import (
	"context"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quic-go/quic-go/testutils/simnet"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	q "github.com/quic-go/quic-go"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/counters"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/registry"
	"github.com/nearcall/nearcall/internal/testing/leak"
	"github.com/nearcall/nearcall/internal/testing/needs"
)

// A counter counts the packets that a socket sends.
type counter struct {
	net.PacketConn
	sent *atomic.Int64
}

func (c counter) WriteTo(b []byte, a net.Addr) (int, error) {
	c.sent.Add(1)
	return c.PacketConn.WriteTo(b, a)
}

func TestAUnaryCallIsOnePacketEachWay(t *testing.T) {
	// With one processor quic-go makes no packet between a message and the FIN that follows it.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	synctest.Test(t, func(t *testing.T) {
		n := plainNetwork(t)
		var up, down atomic.Int64
		n.lis.pc = counter{n.lis.pc, &down}
		config, _ := testTLS()
		serveOn(t, n.lis, service{}, nearcall.Creds(nearcall.NewTLS(config)))
		d := n.dialer(t, &registry.Settings{})
		open := d.listen
		d.listen = func() (net.PacketConn, error) {
			pc, err := open()
			return counter{pc, &up}, err
		}
		client := dial(t, "inproc:unused", options.WithDialer(d))
		call := func() {
			if _, err := client.UnaryCall(t.Context(), payload(100)); err != nil {
				t.Fatal(err)
			}
		}
		for range 20 { // until the path's limits are known
			call()
		}
		const calls, rounds = 100, 5
		for n := range rounds {
			up.Store(0)
			down.Store(0)
			for range calls {
				call()
			}
			// Acknowledgements of their own come now and then.
			to, from := up.Load(), down.Load()
			t.Logf("%d calls took %d packets to the server and %d back", calls, to, from)
			if to < calls || from < calls {
				t.Fatal("a call is less than one packet each way")
			}
			if to <= calls*11/10 && from <= calls*11/10 {
				return
			}
			// On a busy machine a round can have more packets, probably because the goroutine is stopped
			// between the message and the FIN.
			if n == rounds-1 {
				t.Error("a call is more than one packet each way")
			}
		}
	})
}

// A tardy context has a deadline, and its timer never fires.
type tardy struct {
	context.Context
	deadline time.Time
}

func (c tardy) Deadline() (time.Time, bool) { return c.deadline, true }

// TestTheDeadlineComesBeforeAnEndThatArrivesAfterIt: what a handler says when the deadline that it
// was told of has passed does not count, even if the caller's timer is late.
func TestTheDeadlineComesBeforeAnEndThatArrivesAfterIt(t *testing.T) {
	for _, end := range []error{nil, status.Error(codes.NotFound, "no")} {
		synctest.Test(t, func(t *testing.T) {
			n := plainNetwork(t)
			config, _ := testTLS()
			wait := func(ctx context.Context) error {
				deadline, _ := ctx.Deadline()
				time.Sleep(time.Until(deadline))
				return end
			}
			serveOn(t, n.lis, service{
				unary: func(ctx context.Context, _ *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
					return &testpb.SimpleResponse{}, wait(ctx)
				},
				stream: func(s testpb.TestService_FullDuplexCallServer) error { return wait(s.Context()) },
			}, nearcall.Creds(nearcall.NewTLS(config)))
			client := n.client(t)
			base, cancel := context.WithCancel(t.Context())
			defer cancel()
			_, unary := client.UnaryCall(tardy{base, time.Now().Add(time.Second)}, empty)
			s, stream := client.FullDuplexCall(tardy{base, time.Now().Add(time.Second)})
			if stream == nil {
				_, stream = s.Recv()
			}
			if status.Code(unary) != codes.DeadlineExceeded || status.Code(stream) != codes.DeadlineExceeded {
				t.Errorf("the handlers say %v, and the callers get %v and %v", end, unary, stream)
			}
		})
	}
}

// TestAHeaderThatItsCallerDoesNotTakeFailsTheCall: the caller learns why.
func TestAHeaderThatItsCallerDoesNotTakeFailsTheCall(t *testing.T) {
	_, target := serve(t, service{stream: func(s testpb.TestService_FullDuplexCallServer) error {
		return s.SendHeader(metadata.Pairs("large", strings.Repeat("x", 20<<10)))
	}})
	client := dial(t, target, nearcall.WithMaxHeaderListSize(16<<10))
	s, err := client.FullDuplexCall(t.Context())
	if err == nil {
		_, err = s.Recv()
	}
	if status.Code(err) != codes.Internal || !strings.Contains(err.Error(), "the header of") {
		t.Errorf("the caller is told %v", err)
	}
	if _, err := client.UnaryCall(t.Context(), empty); err != nil {
		t.Error(err)
	}
}

func TestWhatHandlersFind(t *testing.T) {
	found := make(chan credentials.TLSInfo, 1)
	_, target := serve(t, service{unary: func(ctx context.Context, _ *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		p, _ := peer.FromContext(ctx)
		info, _ := p.AuthInfo.(credentials.TLSInfo)
		found <- info
		return &testpb.SimpleResponse{Username: p.Addr.Network()}, nil
	}})
	out, err := dial(t, target).UnaryCall(t.Context(), empty)
	if err != nil || out.Username != "udp" {
		t.Fatalf("the network of the peer is %q (%v), want udp", out.GetUsername(), err)
	}
	if info := <-found; info.State.NegotiatedProtocol != alpn || info.SecurityLevel != credentials.PrivacyAndIntegrity {
		t.Errorf("the peer is %+v", info)
	}
}

// A session counts on both sides from the end of its handshake until it has ended.
func TestSessionsAreCounted(t *testing.T) {
	open := func() int64 {
		client, _ := counters.Sessions(true, counters.QUIC)
		server, _ := counters.Sessions(false, counters.QUIC)
		return client + server
	}
	leak.Eventually(t, "the sessions of other tests have ended", func() bool { return open() == 0 })
	_, client := counters.Sessions(true, counters.QUIC)
	_, server := counters.Sessions(false, counters.QUIC)
	srv, target := serve(t, service{})
	if _, err := dial(t, target).UnaryCall(t.Context(), empty); err != nil {
		t.Fatal(err)
	}
	leak.Eventually(t, "the session counts on both sides", func() bool { return open() == 2 }) // a call may overtake HELLO
	_, clients := counters.Sessions(true, counters.QUIC)
	_, servers := counters.Sessions(false, counters.QUIC)
	if clients != client+1 || servers != server+1 {
		t.Errorf("%d clients' and %d servers' sessions were opened", clients-client, servers-server)
	}
	srv.Stop()
	leak.Eventually(t, "the session has ended on both sides", func() bool { return open() == 0 })
}

func TestBadTargetsAndCredentials(t *testing.T) {
	_, config := testTLS()
	good := nearcall.WithTransportCredentials(nearcall.NewTLS(config))
	for _, c := range []struct {
		target, want string
		opt          nearcall.DialOption
	}{
		{"quic:host", "quic:HOST:PORT", good},
		{"quic:host:", "port is missing", good},
		{"quic::1", "host is missing", good},
		{"quic://host:1", "quic:HOST:PORT", good},
		{"quic:host:65536", "no port 65536", good},
		{"quic:127.0.0.1:1", "always uses TLS", nil},
		{"quic:host:1", "no transport security set", nil},
		{"quic:host:1", "always uses TLS", nearcall.WithTransportCredentials(insecure.NewCredentials())},
		{"quic:host:1", "make them with nearcall.NewTLS", nearcall.WithTransportCredentials(credentials.NewTLS(config))},
	} {
		conn, err := nearcall.NewClient(c.target, c.opt)
		if err == nil {
			_ = conn.Close()
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("NewClient(%q): %v, want %q", c.target, err, c.want)
		}
	}
	lis, err := nearcall.Listen("quic:127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := nearcall.NewServer().Serve(lis); err == nil || !strings.Contains(err.Error(), "always uses TLS") {
		t.Errorf("Serve without credentials: %v", err)
	}
}

func TestCallsBothWays(t *testing.T) {
	config, _ := testTLS()
	lis, err := nearcall.Listen("quic:127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serveOn(t, lis, service{unary: func(ctx context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		return testpb.NewTestServiceClient(nearcall.PeerConn(ctx)).UnaryCall(ctx, in)
	}}, nearcall.Creds(nearcall.NewTLS(config)))
	here := nearcall.NewServer()
	testpb.RegisterTestServiceServer(here, service{unary: func(context.Context, *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		return &testpb.SimpleResponse{Username: "client"}, nil
	}})
	t.Cleanup(here.Stop)
	client := dial(t, lis.Target(), nearcall.WithServer(here))
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if out, err := client.UnaryCall(t.Context(), empty); err != nil || out.Username != "client" {
				t.Errorf("%v, %v", out, err)
			}
		})
	}
	all.Wait()
	_, err = dial(t, lis.Target()).UnaryCall(t.Context(), empty) // a client that takes no calls
	if status.Code(err) != codes.Unimplemented && status.Code(err) != codes.Unavailable && status.Code(err) != codes.FailedPrecondition {
		t.Errorf("a client without a server was called: %v", err)
	}
}

// The address of a client changes under way, as behind a NAT that forgets.
func TestConnectionsSurviveANewAddressOfTheClient(t *testing.T) {
	_, target := serve(t, service{})
	there, err := net.ResolveUDPAddr("udp", strings.TrimPrefix(target, "quic:"))
	if err != nil {
		t.Fatal(err)
	}
	nat := newNAT(t, there)
	_, config := testTLS()
	made, err := newDialer(target, nat.front.LocalAddr().String(), &registry.Settings{Config: clientOptions(), TLS: config})
	if err != nil {
		t.Fatal(err)
	}
	var sessions atomic.Int64
	client := dial(t, "inproc:unused", options.WithDialer(counting{made, &sessions}))
	for range 4 {
		if _, err := client.UnaryCall(t.Context(), empty); err != nil {
			t.Fatal(err)
		}
		nat.rebind()
	}
	if n := sessions.Load(); n != 1 {
		t.Errorf("the client has connected %d times", n)
	}
}

type counting struct {
	link.Dialer
	n *atomic.Int64
}

func (c counting) Dial(ctx context.Context) (link.Session, error) {
	c.n.Add(1)
	return c.Dialer.Dial(ctx)
}

// A nat forwards the packets of one client from its own address.
type nat struct {
	front *net.UDPConn
	to    *net.UDPAddr
	all   sync.WaitGroup

	mu     sync.Mutex
	back   *net.UDPConn
	client *net.UDPAddr
}

func newNAT(t *testing.T, to *net.UDPAddr) *nat {
	front, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	n := &nat{front: front, to: to}
	n.rebind()
	n.all.Go(func() {
		b := make([]byte, 2048)
		for {
			size, from, err := front.ReadFromUDP(b)
			if err != nil {
				return
			}
			n.mu.Lock()
			n.client = from
			_, _ = n.back.Write(b[:size])
			n.mu.Unlock()
		}
	})
	t.Cleanup(func() {
		_ = front.Close()
		n.mu.Lock()
		_ = n.back.Close()
		n.mu.Unlock()
		n.all.Wait()
	})
	return n
}

// rebind gives the client another address.
func (n *nat) rebind() {
	back, err := net.DialUDP("udp", nil, n.to)
	if err != nil {
		panic(err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.back != nil {
		_ = n.back.Close()
	}
	n.back = back
	n.all.Go(func() {
		b := make([]byte, 2048)
		for {
			size, err := back.Read(b)
			if err != nil {
				return
			}
			n.mu.Lock()
			to := n.client
			n.mu.Unlock()
			_, _ = n.front.WriteToUDP(b[:size], to)
		}
	})
}

func TestAConnectionMovesToAnotherPath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := plainNetwork(t)
		config, _ := testTLS()
		serveOn(t, n.lis, service{stream: func(st testpb.TestService_FullDuplexCallServer) error {
			for {
				if _, err := st.Recv(); err != nil {
					return nil
				}
				if err := st.Send(&testpb.StreamingOutputCallResponse{}); err != nil {
					return err
				}
			}
		}}, nearcall.Creds(nearcall.NewTLS(config)))
		s := n.dial(t, &registry.Settings{})
		client := dial(t, "inproc:unused", options.WithDialer(existing{s}))
		st, err := client.FullDuplexCall(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		echo := func() {
			if err := st.Send(&testpb.StreamingOutputCallRequest{}); err != nil {
				t.Fatal(err)
			}
			if _, err := st.Recv(); err != nil {
				t.Fatal(err)
			}
		}
		echo()
		pc := &sendCounter{SimConn: simnet.NewSimConn(&net.UDPAddr{IP: net.IPv4(1, 0, 0, 3).To4(), Port: 3}, n.router)}
		other := &q.Transport{Conn: pc}
		path, err := s.conn.AddPath(other)
		if err != nil {
			t.Fatal(err)
		}
		if err := path.Probe(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := path.Switch(); err != nil {
			t.Fatal(err)
		}
		probes, moved := pc.sent.Load(), false
		for range 10 { // quic-go moves when it next looks
			echo()
			moved = moved || pc.sent.Load() > probes
		}
		if !moved {
			t.Error("the stream's packets do not leave from the new address")
		}
		_ = st.CloseSend()
		if _, err := st.Recv(); err != io.EOF {
			t.Errorf("the stream's end: %v", err)
		}
		_ = s.Close(context.Canceled)
		<-s.closed
		_ = other.Close()
		_ = pc.Close()
	})
}

// existing is a dialer with one session.
type existing struct{ s link.Session }

func (e existing) Dial(context.Context) (link.Session, error) { return e.s, nil }

// A program with a nearcall that this module does not know fails to compile with one error.
func TestAnotherNearcallIsOneError(t *testing.T) {
	needs.Program(t, "go")
	source, err := filepath.Abs("../internal/registry/registry.go")
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(source)
	if err != nil {
		t.Fatal(err)
	}
	changed := filepath.Join(t.TempDir(), "transport.go")
	b = []byte(strings.ReplaceAll(string(b), "TheSameVersion3", "TheSameVersion4"))
	if err := os.WriteFile(changed, b, 0o600); err != nil {
		t.Fatal(err)
	}
	overlay := filepath.Join(t.TempDir(), "overlay.json")
	if err := os.WriteFile(overlay, []byte(`{"Replace":{"`+filepath.ToSlash(source)+`":"`+filepath.ToSlash(changed)+`"}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("go", "build", "-overlay", overlay, ".").CombinedOutput()
	if err == nil || strings.Count(string(out), "\n") != 2 || !strings.Contains(string(out), "NearcallAndItsModulesMustHaveTheSameVersion3") {
		t.Errorf("go build: %v\n%s", err, out)
	}
}

// A sendCounter counts the packets that it sends.
type sendCounter struct {
	*simnet.SimConn
	sent atomic.Int64
}

func (c *sendCounter) WriteTo(b []byte, to net.Addr) (int, error) {
	c.sent.Add(1)
	return c.SimConn.WriteTo(b, to)
}
