package fleet

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	etcdresolver "go.etcd.io/etcd/client/v3/naming/resolver"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/resolver"

	"github.com/nearcall/nearcall"
)

// A client is nearcall's or grpc-go's.
type client struct {
	grpc.ClientConnInterface
	close func() error
}

// alive notices a dead peer in 12 s at most: grpc-go raises shorter times to 10 s.
var alive = keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 2 * time.Second, PermitWithoutStream: true}

const (
	roundRobin = `"loadBalancingConfig":[{"round_robin":{}}]`
	retries    = `"methodConfig":[{"name":[{}],"retryPolicy":{"maxAttempts":5,"initialBackoff":"0.02s","maxBackoff":"0.2s","backoffMultiplier":2,"retryableStatusCodes":["UNAVAILABLE"]}}]`
)

func dial(t *testing.T, kind string, retry bool) client {
	t.Helper()
	names, err := clientv3.New(clientv3.Config{Endpoints: etcd(), DialTimeout: 5 * time.Second, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	var r resolver.Builder
	if r, err = etcdresolver.NewBuilder(names); err != nil {
		t.Fatal(err)
	}
	config := "{" + roundRobin + "}"
	if retry {
		config = "{" + roundRobin + "," + retries + "}"
	}
	target := "etcd:///" + service
	params := grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, MaxDelay: 500 * time.Millisecond}, MinConnectTimeout: time.Second}
	closed := func(conn interface{ Close() error }) func() error {
		return func() error {
			err := conn.Close()
			_ = names.Close()
			return err
		}
	}
	if kind == "grpc-go" {
		conn, err := grpc.NewClient(target, grpc.WithResolvers(r), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithKeepaliveParams(alive), grpc.WithConnectParams(params), grpc.WithDefaultServiceConfig(config))
		if err != nil {
			t.Fatal(err)
		}
		return client{conn, closed(conn)}
	}
	conn, err := nearcall.NewClient(target, nearcall.WithResolvers(r), nearcall.WithTransportCredentials(insecure.NewCredentials()), nearcall.WithKeepaliveParams(alive), nearcall.WithConnectParams(params), nearcall.WithDefaultServiceConfig(config))
	if err != nil {
		t.Fatal(err)
	}
	return client{conn, closed(conn)}
}

// A load is calls of some callers, one after the other, until it ends.
type load struct {
	client client
	stop   chan struct{}
	all    sync.WaitGroup

	mu    sync.Mutex
	calls []outcome
}

// An outcome is that of one call.
type outcome struct {
	begun  time.Time
	took   time.Duration
	server string
	err    error
}

// Of the callers some make calls with streams.
const callers, streamers = 8, 2

// begin begins calls with a client, once they reach all servers of the fleet.
func (f *fleet) begin(kind string, retry bool) *load {
	f.t.Helper()
	l := &load{client: dial(f.t, kind, retry), stop: make(chan struct{})}
	l.reach(f.t, len(servers))
	for i := range callers {
		if i < streamers {
			l.all.Go(l.streams)
		} else {
			l.all.Go(l.unary)
		}
	}
	return l
}

// reach calls until so many servers are called.
func (l *load) reach(t *testing.T, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for {
		reached := make(map[string]bool)
		for range 4 * n {
			reply, err := pb.NewTestServiceClient(l.client).UnaryCall(ctx, &pb.SimpleRequest{}, grpc.WaitForReady(true))
			if err != nil {
				t.Fatalf("calls do not reach %d servers, but %v: %v", n, slices.Sorted(maps.Keys(reached)), err)
			}
			reached[reply.GetServerId()] = true
		}
		if len(reached) == n {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (l *load) loop(call func(context.Context) (string, error)) {
	for {
		select {
		case <-l.stop:
			return
		default:
		}
		o := outcome{begun: time.Now()}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		o.server, o.err = call(ctx)
		cancel()
		o.took = time.Since(o.begun)
		l.mu.Lock()
		l.calls = append(l.calls, o)
		l.mu.Unlock()
		time.Sleep(200 * time.Microsecond)
	}
}

func (l *load) unary() {
	l.loop(func(ctx context.Context) (string, error) {
		reply, err := pb.NewTestServiceClient(l.client).UnaryCall(ctx, &pb.SimpleRequest{})
		return reply.GetServerId(), err
	})
}

// streams makes calls of three messages each way.
func (l *load) streams() {
	l.loop(func(ctx context.Context) (string, error) {
		s, err := pb.NewTestServiceClient(l.client).FullDuplexCall(ctx)
		if err != nil {
			return "", err
		}
		for range 3 {
			if err := s.Send(&pb.StreamingOutputCallRequest{}); err != nil {
				_, err = s.Recv()
				return "", err
			}
			if _, err := s.Recv(); err != nil {
				return "", fmt.Errorf("a stream: %w", err)
			}
		}
		_ = s.CloseSend()
		if _, err = s.Recv(); err != io.EOF {
			return "", err
		}
		return "", nil
	})
}

// end ends the load and returns the outcomes.
func (l *load) end(t *testing.T) outcomes {
	t.Helper()
	close(l.stop)
	l.all.Wait()
	if err := l.client.close(); err != nil {
		t.Error(err)
	}
	return l.calls
}

type outcomes []outcome

// failed returns the failed calls.
func (all outcomes) failed() (failed outcomes) {
	for _, o := range all {
		if o.err != nil {
			failed = append(failed, o)
		}
	}
	return failed
}

// String describes the number of calls and the errors of those that have failed.
func (all outcomes) String() string {
	errs := make(map[string]int)
	for _, o := range all.failed() {
		errs[o.err.Error()]++
	}
	text := fmt.Sprintf("%d calls, %d failed", len(all), len(all.failed()))
	for _, e := range slices.Sorted(maps.Keys(errs)) {
		text += fmt.Sprintf("\n\t%d times %s", errs[e], e)
	}
	return text
}

// p99 returns the 99th percentile of successful calls that began in the second after at.
func (all outcomes) p99(at time.Time) time.Duration {
	var took []time.Duration
	for _, o := range all {
		if since := o.begun.Sub(at); o.err == nil && since >= 0 && since < time.Second {
			took = append(took, o.took)
		}
	}
	if len(took) == 0 {
		return 0
	}
	slices.Sort(took)
	return took[len(took)*99/100]
}
