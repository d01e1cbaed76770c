package quic

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	q "github.com/quic-go/quic-go"
	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/hook"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wire"
)

// The methods of a service, as generated code would register them.
const (
	look   = "/nearcall.test.Early/Look" // marked with NO_SIDE_EFFECTS
	change = "/nearcall.test.Early/Change"
)

func init() {
	method := func(name string, level descriptorpb.MethodOptions_IdempotencyLevel) *descriptorpb.MethodDescriptorProto {
		return &descriptorpb.MethodDescriptorProto{
			Name: proto.String(name), InputType: proto.String(".grpc.testing.SimpleRequest"), OutputType: proto.String(".grpc.testing.SimpleResponse"),
			Options: &descriptorpb.MethodOptions{IdempotencyLevel: level.Enum()},
		}
	}
	file, err := protodesc.NewFile(&descriptorpb.FileDescriptorProto{
		Name: proto.String("nearcall/quic/early_test.proto"), Package: proto.String("nearcall.test"), Syntax: proto.String("proto3"),
		Dependency: []string{testpb.File_grpc_testing_messages_proto.Path()},
		Service: []*descriptorpb.ServiceDescriptorProto{{Name: proto.String("Early"), Method: []*descriptorpb.MethodDescriptorProto{
			method("Look", descriptorpb.MethodOptions_NO_SIDE_EFFECTS),
			method("Change", descriptorpb.MethodOptions_IDEMPOTENT),
		}}},
	}, protoregistry.GlobalFiles)
	if err == nil {
		err = protoregistry.GlobalFiles.RegisterFile(file)
	}
	if err != nil {
		panic(err)
	}
}

// An earlyService counts the calls of its methods.
type earlyService struct{ looks, changes atomic.Int32 }

func (s *earlyService) register(srv grpc.ServiceRegistrar) {
	handler := func(calls *atomic.Int32) grpc.MethodHandler {
		return func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			in := new(testpb.SimpleRequest)
			if err := decode(in); err != nil {
				return nil, err
			}
			calls.Add(1)
			return &testpb.SimpleResponse{Payload: in.Payload}, nil
		}
	}
	srv.RegisterService(&grpc.ServiceDesc{ServiceName: "nearcall.test.Early", HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{
		{MethodName: "Look", Handler: handler(&s.looks)}, {MethodName: "Change", Handler: handler(&s.changes)},
	}}, s)
}

// serveEarly serves s at lis.
func serveEarly(t testing.TB, lis nearcall.Listener, s *earlyService, opts ...nearcall.ServerOption) *nearcall.Server {
	srv := nearcall.NewServer(opts...)
	s.register(srv)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := srv.Serve(lis); err != nil {
			t.Errorf("Serve: %v", err)
		}
	}()
	t.Cleanup(func() {
		srv.Stop()
		<-done
	})
	return srv
}

// A farConn delivers what it sends after a while.
type farConn struct {
	net.PacketConn
	after time.Duration
}

func (c farConn) WriteTo(b []byte, to net.Addr) (int, error) {
	b = append([]byte(nil), b...)
	time.AfterFunc(c.after, func() { _, _ = c.PacketConn.WriteTo(b, to) })
	return len(b), nil
}

// aRound is the time there and back between farConns.
const aRound = 100 * time.Millisecond

// farEarly returns a dialer to a server of s that is far away.
func (n *network) farEarly(t *testing.T, s *earlyService, client map[any]any, opts ...nearcall.ServerOption) (*dialer, *nearcall.Server) {
	config, _ := testTLS()
	n.lis.pc = farConn{n.lis.pc, aRound / 2}
	srv := serveEarly(t, n.lis, s, append(opts, nearcall.Creds(nearcall.NewTLS(config)))...)
	d := n.dialer(t, &hook.Settings{Values: client})
	listen := d.listen
	d.listen = func() (net.PacketConn, error) {
		pc, err := listen()
		return farConn{pc, aRound / 2}, err
	}
	return d, srv
}

// rounds returns how many round trips the first call of a new connection takes.
func rounds(t *testing.T, d *dialer, method string) float64 {
	conn, err := nearcall.NewClient("inproc:unused", hook.Dialer(d).(nearcall.DialOption))
	if err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	out := new(testpb.SimpleResponse)
	if err := conn.Invoke(t.Context(), method, payload(100), out); err != nil || len(out.Payload.GetBody()) != 100 {
		t.Errorf("%s: %v", method, err)
	}
	took := time.Since(begun)
	time.Sleep(time.Second) // the session ticket arrives
	_ = conn.Close()
	time.Sleep(10 * time.Second)
	return float64(took.Round(time.Millisecond)) / float64(aRound)
}

var withEarly = map[any]any{keyEarly: true}

func TestAnEarlyCallTakesOneRoundTrip(t *testing.T) {
	for _, c := range []struct {
		name         string
		method       string
		client       map[any]any
		server       []nearcall.ServerOption
		first, later float64
	}{
		{"both sides want it", look, withEarly, []nearcall.ServerOption{AcceptEarlyData()}, 2, 1},
		{"the method may have side effects", change, withEarly, []nearcall.ServerOption{AcceptEarlyData()}, 2, 2},
		{"the server does not want it", look, withEarly, nil, 2, 2},
		{"the client does not want it", look, nil, []nearcall.ServerOption{AcceptEarlyData()}, 2, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := plainNetwork(t)
				s := new(earlyService)
				d, _ := n.farEarly(t, s, c.client, c.server...)
				for i, want := range []float64{c.first, c.later, c.later} {
					if got := rounds(t, d, c.method); got != want {
						t.Errorf("connection %d: the call took %v round trips, want %v", i+1, got, want)
					}
				}
				if n := s.looks.Load() + s.changes.Load(); n != 3 {
					t.Errorf("%d calls were handled, want 3", n)
				}
			})
		})
	}
}

// A server that was started again has other keys, and rejects early data. The calls are made again.
func TestEarlyCallsThatAreRejectedAreMadeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := plainNetwork(t)
		first, second := new(earlyService), new(earlyService)
		d, srv := n.farEarly(t, first, withEarly, AcceptEarlyData())
		rounds(t, d, look)
		srv.Stop()
		time.Sleep(time.Minute)
		n.router.RemoveNode(n.server)
		lis := n.listener()
		lis.pc = farConn{lis.pc, aRound / 2}
		config, _ := testTLS()
		serveEarly(t, lis, second, AcceptEarlyData(), nearcall.Creds(nearcall.NewTLS(config)))
		conn, err := nearcall.NewClient("inproc:unused", hook.Dialer(d).(nearcall.DialOption))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		begun := time.Now()
		var all sync.WaitGroup
		for _, method := range []string{look, look, change, look} {
			all.Go(func() {
				if err := conn.Invoke(t.Context(), method, empty, new(testpb.SimpleResponse)); err != nil {
					t.Errorf("%s: %v", method, err)
				}
			})
		}
		all.Wait()
		if took := time.Since(begun).Round(time.Millisecond); took != 2*aRound {
			t.Errorf("the calls took %v, want %v", took, 2*aRound)
		}
		if looks, changes := second.looks.Load(), second.changes.Load(); looks != 3 || changes != 1 {
			t.Errorf("%d and %d calls were handled, want 3 and 1", looks, changes)
		}
	})
}

// A recordingConn keeps what it sends.
type recordingConn struct {
	net.PacketConn
	mu   sync.Mutex
	sent [][]byte
}

func (c *recordingConn) WriteTo(b []byte, to net.Addr) (int, error) {
	c.mu.Lock()
	c.sent = append(c.sent, append([]byte(nil), b...))
	c.mu.Unlock()
	return c.PacketConn.WriteTo(b, to)
}

// What a client sends before it has received anything can be sent again by somebody else. Then a
// method that may have side effects is not called, also for a client that calls it early.
func TestEarlyCallsThatAreRepeatedHaveNoSideEffects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := plainNetwork(t)
		config, _ := testTLS()
		s := new(earlyService)
		serveEarly(t, n.lis, s, AcceptEarlyData(), nearcall.Creds(nearcall.NewTLS(config)))
		d := n.dialer(t, &hook.Settings{Values: withEarly})
		rounds(t, d, look)

		// A client of its own kind makes both calls early, and is cut off.
		pc, err := d.listen()
		if err != nil {
			t.Fatal(err)
		}
		recorded := &recordingConn{PacketConn: deafConn{pc}}
		tr := &q.Transport{Conn: recorded}
		conn, err := tr.DialEarly(t.Context(), n.server, d.tls, d.config)
		if err != nil {
			t.Fatal(err)
		}
		for _, method := range []string{look, change} {
			qs, err := conn.OpenStream()
			if err != nil {
				t.Fatal(err)
			}
			_, _ = qs.Write(framesOf(&wire.Step{Open: &link.CallHeader{Method: method, Profile: &link.Profile{}}, HasMessage: true, HalfClose: true}))
			_ = qs.Close()
		}
		time.Sleep(10 * time.Millisecond)
		recorded.mu.Lock()
		flight := recorded.sent
		recorded.mu.Unlock()
		_ = tr.Close()
		_ = pc.Close()
		time.Sleep(time.Minute)
		if looks, changes := s.looks.Load(), s.changes.Load(); looks != 2 || changes != 0 {
			t.Errorf("a client without a handshake made %d and %d calls, want 2 and 0", looks, changes)
		}

		again, err := d.listen()
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range flight {
			_, _ = again.WriteTo(b, n.server)
		}
		time.Sleep(time.Minute)
		_ = again.Close()
		if changes := s.changes.Load(); changes != 0 {
			t.Errorf("repeated packets made %d calls that may have side effects", changes)
		}
		if looks := s.looks.Load(); looks != 3 {
			t.Errorf("the service was looked at %d times, want 3: the test repeats nothing", looks)
		}
	})
}

// Many connections with calls at all moments of their handshakes.
func TestEarlyCallsAmongOthers(t *testing.T) {
	lis, err := nearcall.Listen("quic:127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server, client := testTLS()
	s := new(earlyService)
	serveEarly(t, lis, s, AcceptEarlyData(), nearcall.Creds(nearcall.NewTLS(server)))
	d, err := newDialer(lis.Target(), lis.Addr().String(), &hook.Settings{TLS: client, Values: withEarly})
	if err != nil {
		t.Fatal(err)
	}
	connections := 100
	if testing.Short() {
		connections = 20
	}
	const calls = 16
	for range connections {
		conn, err := nearcall.NewClient("inproc:unused", hook.Dialer(d).(nearcall.DialOption))
		if err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for i := range calls {
			all.Go(func() {
				time.Sleep(time.Duration(i) * 50 * time.Microsecond)
				method := look
				if i%4 == 3 {
					method = change
				}
				var p peer.Peer
				out := new(testpb.SimpleResponse)
				if err := conn.Invoke(t.Context(), method, payload(3000), out, grpc.Peer(&p)); err != nil || len(out.Payload.Body) != 3000 {
					t.Errorf("%s: %v", method, err)
				}
			})
		}
		all.Wait()
		_ = conn.Close()
	}
	if looks, changes := int(s.looks.Load()), int(s.changes.Load()); looks != connections*calls*3/4 || changes != connections*calls/4 {
		t.Errorf("%d and %d calls were handled", looks, changes)
	}
}
