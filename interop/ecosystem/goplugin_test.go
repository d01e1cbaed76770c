package ecosystem

import (
	"context"
	"crypto/tls"
	"net"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	counterpb "github.com/hashicorp/go-plugin/examples/bidirectional/proto"
	"github.com/hashicorp/go-plugin/examples/bidirectional/shared"
	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/forward"
)

// pluginMoved is set in the environment of a plugin whose server is nearcall's.
const pluginMoved = "NEARCALL_TEST_PLUGIN_MOVED"

// newServer returns the function that makes the servers of a host or a plugin.
func newServer(moved bool) func([]grpc.ServerOption) *grpc.Server {
	if moved {
		return forward.NewServer
	}
	return plugin.DefaultGRPCServer
}

// isPlugin reports whether a host has started this process as its plugin.
func isPlugin() bool { return os.Getenv(shared.Handshake.MagicCookieKey) != "" }

// servePlugin serves a counter, until the host stops it.
func servePlugin() {
	plugin.Serve(&plugin.ServeConfig{
		HandshakeConfig: shared.Handshake,
		Plugins:         plugin.PluginSet{"counter": &shared.CounterPlugin{Impl: &counter{values: map[string]int64{}}}},
		GRPCServer:      newServer(os.Getenv(pluginMoved) != ""),
	})
}

type counter struct {
	mu     sync.Mutex
	values map[string]int64
}

func (c *counter) Put(key string, value int64, add shared.AddHelper) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	sum, err := add.Sum(c.values[key], value)
	c.values[key] = sum
	return err
}

func (c *counter) Get(key string) (int64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.values[key], nil
}

// hosted is the host's end of the plugin, with a broker whose servers can be nearcall's.
type hosted struct {
	shared.CounterPlugin
	newServer func([]grpc.ServerOption) *grpc.Server
}

func (h *hosted) GRPCClient(_ context.Context, broker *plugin.GRPCBroker, conn *grpc.ClientConn) (any, error) {
	return &remote{counterpb.NewCounterClient(conn), broker, h.newServer}, nil
}

type remote struct {
	client    counterpb.CounterClient
	broker    *plugin.GRPCBroker
	newServer func([]grpc.ServerOption) *grpc.Server
}

// put adds value to key. The plugin calls the host for the sum.
func (r *remote) put(ctx context.Context, key string, value int64) error {
	id := r.broker.NextId()
	made, over := make(chan *grpc.Server, 1), make(chan struct{})
	go func() {
		defer close(over)
		r.broker.AcceptAndServe(id, func(opts []grpc.ServerOption) *grpc.Server {
			srv := r.newServer(opts)
			counterpb.RegisterAddHelperServer(srv, &shared.GRPCAddHelperServer{Impl: adder{}})
			made <- srv
			return srv
		})
	}()
	_, err := r.client.Put(ctx, &counterpb.PutRequest{AddServer: id, Key: key, Value: value})
	(<-made).Stop()
	<-over
	return err
}

type adder struct{}

func (adder) Sum(a, b int64) (int64, error) { return a + b, nil }

// An edge is what a host knows of its plugin once that runs.
type edge struct {
	addr net.Addr
	tls  *tls.Config // nil without TLS
}

// dial connects as go-plugin does.
func (e *edge) dial(ctx context.Context, _ string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, e.addr.Network(), e.addr.String())
	if err != nil || e.tls == nil {
		return conn, err
	}
	secure := e.tls.Clone()
	secure.NextProtos = []string{"h2"}
	return tls.Client(conn, secure), nil
}

// near returns a connection to the plugin at e, whose server may be an ordinary one.
func (e *edge) near(t *testing.T) *nearcall.ClientConn {
	t.Helper()
	conn, err := nearcall.NewClient("unix:plugin", nearcall.WithContextDialer(e.dial))
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// use calls the plugin of a client, and returns the network that the calls take.
func use(t *testing.T, client *plugin.Client, before, after int64) string {
	t.Helper()
	protocol, err := client.Client()
	if err != nil {
		t.Fatal(err)
	}
	raw, err := protocol.Dispense("counter")
	if err != nil {
		t.Fatal(err)
	}
	c := raw.(*remote)
	if got, err := c.client.Get(t.Context(), &counterpb.GetRequest{Key: "tea"}); err != nil || got.GetValue() != before {
		t.Errorf("the plugin has counted %v, %v", got, err)
	}
	for range after - before {
		if err := c.put(t.Context(), "tea", 1); err != nil {
			t.Error(err)
		}
	}
	if got, err := c.client.Get(t.Context(), &counterpb.GetRequest{Key: "tea"}); err != nil || got.GetValue() != after {
		t.Errorf("the plugin has counted %v, %v", got, err)
	}
	if err := protocol.Ping(); err != nil {
		t.Error(err)
	}
	var p peer.Peer
	check := &healthpb.HealthCheckRequest{Service: plugin.GRPCServiceName}
	if _, err := healthpb.NewHealthClient(protocol.(*plugin.GRPCClient).Conn).Check(t.Context(), check, grpc.Peer(&p)); err != nil {
		t.Fatal(err)
	}
	return p.Addr.Network()
}

// Hosts and plugins of HashiCorp's go-plugin move to nearcall one at a time, with an option each.
func TestHostsAndPluginsMoveOneAtATime(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("there plugins listen at TCP ports")
	}
	hosts := map[string]bool{"an ordinary host": false, "a host that has moved": true}
	plugins := map[string]string{"an ordinary plugin": "", "a plugin that has moved": "1"}
	for hostName, hostHasMoved := range hosts {
		for pluginName, pluginHasMoved := range plugins {
			for security, secure := range map[string]bool{"": false, ", AutoMTLS": true} {
				t.Run(hostName+", "+pluginName+security, func(t *testing.T) {
					t.Parallel()
					var to edge
					config := func() *plugin.ClientConfig {
						c := &plugin.ClientConfig{
							HandshakeConfig:  shared.Handshake,
							Plugins:          plugin.PluginSet{"counter": &hosted{newServer: newServer(hostHasMoved)}},
							AllowedProtocols: []plugin.Protocol{plugin.ProtocolGRPC},
							Logger:           hclog.NewNullLogger(),
						}
						if hostHasMoved {
							conn := to.near(t)
							t.Cleanup(func() { _ = conn.Close() })
							c.GRPCDialOptions = conn.DialOptions()
						}
						return c
					}
					first := config()
					first.Cmd, first.AutoMTLS = exec.Command(os.Args[0]), secure
					first.Cmd.Env = append(os.Environ(), pluginMoved+"="+pluginHasMoved, "GORACE=atexit_sleep_ms=0")
					client := plugin.NewClient(first)
					defer client.Kill()
					addr, err := client.Start()
					if err != nil {
						t.Fatal(err)
					}
					to = edge{addr, first.TLSConfig}
					want := "unix"
					if hostHasMoved && pluginHasMoved != "" && !secure && runtime.GOOS == "linux" {
						want = "shm"
					}
					if got := use(t, client, 0, 3); got != want {
						t.Errorf("calls take %s, want %s", got, want)
					}
					if secure {
						return // go-plugin cannot reattach then
					}
					again := config()
					again.Reattach = client.ReattachConfig()
					other := plugin.NewClient(again)
					defer other.Kill()
					if got := use(t, other, 3, 5); got != want {
						t.Errorf("reattached, calls take %s, want %s", got, want)
					}
				})
			}
		}
	}
}
