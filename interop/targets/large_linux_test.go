package targets

import (
	"bufio"
	"cmp"
	"context"
	"flag"
	"fmt"
	"hash/fnv"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	v3orcapb "github.com/cncf/xds/go/xds/data/orca/v3"
	"google.golang.org/grpc"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/orca"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/stats"
	"google.golang.org/protobuf/proto"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/testing/leak"
)

var (
	endpointsFlag = flag.Int("endpoints", 100, "how many endpoints the clients of TestLargeFleets have")
	rounds        = flag.Int("rounds", 1, "how often TestLargeFleets measures")
)

// manyEnv makes the test binary a process of many servers: it is their kind and how many there are.
const manyEnv = "NEARCALL_MANY_SERVERS"

func init() {
	if text := os.Getenv(manyEnv); text != "" {
		if err := serveMany(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

// serveMany serves many addresses until stdin ends, after it has printed them.
func serveMany(text string) error {
	var kind string
	var n int
	if _, err := fmt.Sscan(text, &kind, &n); err != nil {
		return err
	}
	var srv server = grpc.NewServer()
	switch kind {
	case "shm":
		srv = nearcall.NewServer()
	case "tcp":
		srv = nearcall.NewServer(nearcall.DisableSharedMemory())
	}
	defer srv.Stop()
	pb.RegisterTestServiceServer(srv, many{})
	metrics := orca.NewServerMetricsRecorder()
	metrics.SetCPUUtilization(0.5)
	metrics.SetQPS(100)
	if err := orca.Register(srv, orca.ServiceOptions{ServerMetricsProvider: metrics, MinReportingInterval: time.Second}); err != nil {
		return err
	}
	for i := range n {
		lis, err := net.Listen("tcp", fmt.Sprintf("127.1.%d.%d:0", i>>8, i&255))
		if err != nil {
			return err
		}
		go func() { _ = srv.Serve(lis) }()
		fmt.Println(lis.Addr())
	}
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

// many is the service at all addresses. Its replies name the address, and report a load.
type many struct {
	pb.UnimplementedTestServiceServer
}

func (many) UnaryCall(ctx context.Context, _ *pb.SimpleRequest) (*pb.SimpleResponse, error) {
	p, _ := peer.FromContext(ctx)
	h := fnv.New32()
	_, _ = io.WriteString(h, p.LocalAddr.String())
	load, _ := proto.Marshal(&v3orcapb.OrcaLoadReport{CpuUtilization: 0.2 + float64(h.Sum32()%50)/100, RpsFractional: 100})
	_ = grpc.SetTrailer(ctx, metadata.Pairs("endpoint-load-metrics-bin", string(load)))
	return &pb.SimpleResponse{ServerId: p.LocalAddr.String()}, nil
}

// startMany starts n servers in a process and returns their addresses.
func startMany(t *testing.T, kind string, n int) []resolver.Address {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d", manyEnv, kind, n))
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = cmd.Wait()
	})
	var all []resolver.Address
	for lines := bufio.NewScanner(stdout); len(all) < n && lines.Scan(); {
		all = append(all, resolver.Address{Addr: lines.Text()})
	}
	if len(all) < n {
		t.Fatal("the servers did not start")
	}
	return all
}

// open are the connections of a client, by the server's address.
type open struct {
	mu  sync.Mutex
	now map[string]int
}

type openKey struct{}

func (o *open) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }
func (o *open) HandleRPC(context.Context, stats.RPCStats)                       {}
func (o *open) TagConn(ctx context.Context, i *stats.ConnTagInfo) context.Context {
	return context.WithValue(ctx, openKey{}, i.RemoteAddr.String())
}

func (o *open) HandleConn(ctx context.Context, s stats.ConnStats) {
	o.mu.Lock()
	defer o.mu.Unlock()
	a := ctx.Value(openKey{}).(string)
	if _, begins := s.(*stats.ConnBegin); begins {
		o.now[a]++
	} else if o.now[a]--; o.now[a] == 0 {
		delete(o.now, a)
	}
}

// are returns an error unless there are n connections, each to another one of the addresses.
func (o *open) are(n int, addresses []resolver.Address) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	found := 0
	for _, a := range addresses {
		if o.now[a.Addr] == 1 {
			found++
		}
	}
	if found != n || len(o.now) != n {
		return fmt.Errorf("of %d addresses %d have a connection, and %d others; want %d", len(addresses), found, len(o.now)-found, n)
	}
	return nil
}

// A footprint is what a process has.
type footprint struct {
	heap, goroutines, descriptors int
}

// exceeds returns an error if f has more goroutines or descriptors than o and as many more descriptors.
func (f footprint) exceeds(o footprint, descriptors int) error {
	if f.goroutines > o.goroutines || f.descriptors > o.descriptors+descriptors {
		return fmt.Errorf("there are %d goroutines and %d descriptors, more than %d and %d", f.goroutines, f.descriptors, o.goroutines, o.descriptors+descriptors)
	}
	return nil
}

func measure() footprint {
	runtime.GC()
	runtime.GC() // what finalizers have released
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	files, _ := os.ReadDir("/proc/self/fd")
	return footprint{int(m.HeapAlloc + m.StackInuse), runtime.NumGoroutine(), len(files)}
}

// TestLargeFleets: clients of many endpoints use little for each connection, lose no call when half of the
// endpoints change, and release everything.
func TestLargeFleets(t *testing.T) {
	n := *endpointsFlag
	policies := []struct {
		name, config string
		connections  int
		streams      bool // each connection has one
	}{
		{"round_robin", roundRobin, n, false},
		{"random_subsetting", policy("random_subsetting_experimental", fmt.Sprintf(`{"subsetSize":%d,"childPolicy":[{"round_robin":{}}]}`, n/5)), n / 5, false},
		{"least_request", policy("least_request_experimental", `{}`), n, false},
		{"weighted_round_robin by trailers", policy("weighted_round_robin", `{"blackoutPeriod":"0s","weightUpdatePeriod":"0.1s"}`), n, false},
		{"weighted_round_robin out of band", policy("weighted_round_robin", `{"enableOobLoadReport":true,"oobReportingPeriod":"1s","blackoutPeriod":"0s"}`), n, true},
	}
	many := map[string][]resolver.Address{}
	for _, servers := range []string{"grpc-go", "tcp", "shm"} {
		many[servers] = startMany(t, servers, n+n/2)
	}
	for _, p := range policies {
		t.Run(strings.ReplaceAll(p.name, " ", "-"), func(t *testing.T) {
			for range *rounds {
				want := large(t, grpcClient, "grpc-go", many["grpc-go"], p.config, n, p.connections)
				t.Logf("%-28s %s", "grpc-go", want)
				for _, servers := range []string{"grpc-go", "tcp", "shm"} {
					got := large(t, nearcallClient, servers, many[servers], p.config, n, p.connections)
					t.Logf("%-28s %s\n%s", "nearcall, "+servers, got, got.to(want))
					// One waits for the end of the connection, for the stats handler. A session has three,
					// and a server for grpc-go's stream nine.
					more, descriptors := 1.1, 1.1
					if servers != "grpc-go" {
						more += 3
						if p.streams {
							more += 9
						}
					}
					if servers == "shm" {
						descriptors = 3.1
					}
					if got.goroutines > want.goroutines+more || got.descriptors > descriptors {
						t.Errorf("%s: %.2f goroutines for each connection, %.2f of grpc-go; %.2f descriptors", servers, got.goroutines, want.goroutines, got.descriptors)
					}
				}
			}
		})
	}
}

// A result is what a client of many endpoints has used: for each connection, and in time.
type result struct {
	heap, goroutines, descriptors float64
	first, all, change            time.Duration
}

func (r result) String() string {
	return fmt.Sprintf("%7.0f bytes, %.2f goroutines, %.2f descriptors for each connection; first call %v, all connected %v, change %v",
		r.heap, r.goroutines, r.descriptors, r.first, r.all, r.change)
}

// to returns the ratios to those of grpc-go.
func (r result) to(o result) string {
	d := func(a, b time.Duration) float64 { return float64(a) / float64(b) }
	return fmt.Sprintf("    %.2f bytes, %.2f goroutines, %.2f descriptors, first call %.2f, all connected %.2f, change %.2f",
		r.heap/o.heap, r.goroutines/o.goroutines, r.descriptors/o.descriptors, d(r.first, o.first), d(r.all, o.all), d(r.change, o.change))
}

// large makes calls to n endpoints with as many connections as it should take, and changes half of the
// endpoints and back.
func large(t *testing.T, dial dialer, servers string, all []resolver.Address, config string, n, connections int) result {
	t.Helper()
	var r result
	none := measure()
	c := &C{Setup: Setup{Kind: ordinary, Size: n}, dialer: dial, scale: 1, actors: map[string]*Actor{}, names: map[string]string{}}
	c.ctx, c.cancel = context.WithCancel(t.Context())
	c.Actor = c.Named("client")
	end := sync.OnceFunc(c.end)
	defer end()
	conns := &open{now: map[string]int{}}
	wait := func(f func() error) {
		t.Helper()
		for begin := time.Now(); ; time.Sleep(5 * time.Millisecond) {
			if err := f(); err == nil {
				return
			} else if time.Since(begin) > time.Minute {
				t.Fatalf("%s: %v:\n%s", servers, err, strings.Join(leak.Find(), "\n\n"))
			}
		}
	}
	begin := time.Now()
	client, source := c.Balance(config, all[:n], func(o *Options) { o.Stats = []stats.Handler{conns} })
	if _, err := unary(c.ctx, client); err != nil {
		t.Fatal(err)
	}
	r.first = time.Since(begin)
	wait(func() error { return conns.are(connections, all[:n]) })
	r.all = time.Since(begin)
	for range 4 * n {
		if _, err := unary(c.ctx, client); err != nil {
			t.Fatal(err)
		}
	}
	used := measure()
	per := func(f func(footprint) int) float64 { return float64(f(used)-f(none)) / float64(connections) }
	r.heap = per(func(f footprint) int { return f.heap })
	r.goroutines = per(func(f footprint) int { return f.goroutines })
	r.descriptors = per(func(f footprint) int { return f.descriptors })

	load := c.Load(4, client)
	load.More(100)
	for _, set := range [][]resolver.Address{all[n/2:], all[:n]} {
		begin := time.Now()
		source.Addresses(set...)
		wait(func() error { return conns.are(connections, set) })
		r.change = cmp.Or(r.change, time.Since(begin))
		load.More(100)
	}
	load.Stop("load")
	if lines := c.transcript("").Lines; !strings.Contains(lines[0], "[]") {
		t.Errorf("%s: %s", servers, lines[0])
	}
	// On a busy machine there can be TCP in place of shared memory, which needs fewer descriptors.
	wait(func() error { return measure().exceeds(used, max(0, none.descriptors+3*connections-used.descriptors)) })
	end()
	wait(func() error { return measure().exceeds(none, 0) })
	return r
}
