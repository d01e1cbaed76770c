//go:build linux

package test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/keepalive"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/metrics"
	"github.com/nearcall/nearcall/metrics/metricspb"
)

// least is what a connection of shared memory uses at least on the client's side, in
// bytes, and minOfServer what it uses on the server's side.
const (
	least       = 260 << 10
	minOfServer = 2 * least
)

// becomes waits until is reports true for the stats.
func becomes(t *testing.T, what string, is func(*metricspb.SharedMemory) bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		now := metrics.Read().GetSharedMemory()
		if is(now) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("it does not come true that %s: %+v", what, now)
		}
	}
}

// noneOpen waits until the connections of earlier tests are closed.
func noneOpen(t *testing.T) *metricspb.SharedMemory {
	t.Helper()
	becomes(t, "no connection is left, and no memory", func(s *metricspb.SharedMemory) bool {
		return s.Connections == 0 && s.Bytes == 0
	})
	return metrics.Read().GetSharedMemory()
}

func TestStatsSayWhatBecameOfUnixSockets(t *testing.T) {
	hold(t)
	before := noneOpen(t)
	lis := listen(t, targetFor(t, "unix+shm"))
	srv := serve(t, aware())
	start(t, srv, lis)
	conn, err := nearcall.NewClient(lis.Target())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	client := testpb.NewTestServiceClient(conn)
	wantNetwork(t, client, "shm")
	now := metrics.Read().GetSharedMemory()
	if now.Upgrades-before.Upgrades != 2 || now.Fallbacks != before.Fallbacks || now.Connections != 2 || now.Bytes != minOfServer+least {
		t.Errorf("both sides of a connection are upgraded: %+v, before it %+v", now, before)
	}
	if _, err := client.UnaryCall(t.Context(), &testpb.SimpleRequest{Payload: payload(100_000)}); err != nil {
		t.Error(err)
	}
	if after := metrics.Read().GetSharedMemory(); after.LargeMessages != now.LargeMessages+1 || after.Bytes <= now.Bytes || after.NoRoom != before.NoRoom {
		t.Errorf("after a large message: %+v, before it %+v", after, now)
	}
	time.Sleep(20 * time.Millisecond) // until both sides sleep
	wantNetwork(t, client, "shm")
	if after := metrics.Read().GetSharedMemory(); after.Wakeups == before.Wakeups {
		t.Errorf("nobody was woken for a call: %+v", after)
	}

	wantNetwork(t, dial(t, lis.Target(), nearcall.WithDisableSharedMemory()), "unix")
	if now := metrics.Read().GetSharedMemory(); now.Fallbacks != before.Fallbacks {
		t.Errorf("what nobody offered counts: %+v", now)
	}
	declines := listen(t, targetFor(t, "unix+shm"))
	start(t, serve(t, aware(), nearcall.DisableSharedMemory()), declines)
	wantNetwork(t, dial(t, declines.Target()), "unix")
	if now := metrics.Read().GetSharedMemory(); now.Fallbacks-before.Fallbacks != 2 {
		t.Errorf("a server has declined: %+v", now)
	}
	_ = conn.Close()
	srv.Stop()
	noneOpen(t)
}

func TestWithoutMemoryUnixSocketsStaySockets(t *testing.T) {
	hold(t)
	for name, test := range map[string]struct {
		server []nearcall.ServerOption
		client []nearcall.DialOption
	}{
		"of the server's": {server: []nearcall.ServerOption{nearcall.MaxSharedMemory(minOfServer - 1)}},
		"of the client's": {client: []nearcall.DialOption{nearcall.WithMaxSharedMemory(1)}},
	} {
		t.Run(name, func(t *testing.T) {
			lis := listen(t, targetFor(t, "unix+shm"))
			start(t, serve(t, aware(), test.server...), lis)
			wantNetwork(t, dial(t, lis.Target(), test.client...), "unix")
			insisting := listen(t, targetFor(t, "shm"))
			start(t, serve(t, aware(), test.server...), insisting)
			wantUnavailable(t, dial(t, insisting.Target(), test.client...), "MaxSharedMemory")
			noneOpen(t)
		})
	}
}

func TestConnectionsShareTheServersMemory(t *testing.T) {
	hold(t)
	noneOpen(t)
	lis := listen(t, targetFor(t, "unix+shm"))
	start(t, serve(t, aware(), nearcall.MaxSharedMemory(minOfServer)), lis)
	first, err := nearcall.NewClient(lis.Target())
	if err != nil {
		t.Fatal(err)
	}
	wantNetwork(t, testpb.NewTestServiceClient(first), "shm")
	wantNetwork(t, dial(t, lis.Target()), "unix")
	_ = first.Close()
	noneOpen(t)
	wantNetwork(t, dial(t, lis.Target()), "shm")
}

// While connections drain, calls go on over new ones, though there is memory for one connection only.
func TestDrainingConnectionsKeepNoNewOnesOut(t *testing.T) {
	hold(t)
	for side, bound := range map[string]struct{ client, server int64 }{
		"client's": {least + 100_000, 1 << 30},
		"server's": {128 << 20, minOfServer + 100_000},
	} {
		for _, network := range overShm {
			t.Run(fmt.Sprintf("the %s bound/%s", side, network), func(t *testing.T) {
				before := noneOpen(t)
				service := echo{unary: func(_ context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
					time.Sleep(time.Duration(in.ResponseSize) * time.Millisecond)
					return &testpb.SimpleResponse{Payload: in.Payload}, nil
				}}
				lis := listen(t, targetFor(t, network))
				start(t, serve(t, service, nearcall.MaxSharedMemory(bound.server), nearcall.KeepaliveParams(keepalive.ServerParameters{MaxConnectionAge: 10 * time.Millisecond})), lis)
				client := dial(t, lis.Target(), nearcall.WithMaxSharedMemory(bound.client))
				replaced := func() bool {
					now := metrics.Read().GetSharedMemory()
					return now.Upgrades+now.Fallbacks-before.Upgrades-before.Fallbacks >= 20
				}
				var all sync.WaitGroup
				for i := range 4 {
					all.Go(func() {
						for !replaced() && !t.Failed() {
							in := &testpb.SimpleRequest{Payload: payload(40_000), ResponseSize: int32(i * 20)}
							if out, err := client.UnaryCall(t.Context(), in); err != nil || len(out.GetPayload().GetBody()) != 40_000 {
								t.Errorf("%d bytes come back, %v", len(out.GetPayload().GetBody()), err)
							}
						}
					})
				}
				all.Wait()
			})
		}
	}
}

// Messages for which there is no memory are sent in pieces, and none is lost.
func TestLargeMessagesBeyondTheLimitGoInPieces(t *testing.T) {
	hold(t)
	before := noneOpen(t)
	echoing := echo{unary: func(_ context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		return &testpb.SimpleResponse{Payload: in.Payload}, nil
	}}
	lis := listen(t, targetFor(t, "shm"))
	start(t, serve(t, echoing, nearcall.MaxSharedMemory(minOfServer+1<<20)), lis)
	client := dial(t, lis.Target(), nearcall.WithMaxSharedMemory(least+100_000)) // room for one slab of 64 KiB
	var all sync.WaitGroup
	for _, n := range []int{10, 40_000, 50_000, 65_000, 66_000, 500_000, 3_000_000} {
		for range 4 {
			all.Go(func() {
				body := payload(n)
				for i := range body.Body {
					body.Body[i] = byte(i * n)
				}
				out, err := client.UnaryCall(t.Context(), &testpb.SimpleRequest{Payload: body})
				if err != nil || string(out.GetPayload().GetBody()) != string(body.Body) {
					t.Errorf("%d bytes: %d came back, %v", n, len(out.GetPayload().GetBody()), err)
				}
			})
		}
	}
	all.Wait()
	now := metrics.Read().GetSharedMemory()
	if now.NoRoom == before.NoRoom || now.LargeMessages == before.LargeMessages {
		t.Errorf("some were to find room, and some not: %+v, before %+v", now, before)
	}
	if most := int64(minOfServer + least + 1<<20 + 100_000); now.Bytes > most {
		t.Errorf("%d bytes are taken, of %d", now.Bytes, most)
	}
}

func TestCallsWithoutSpinning(t *testing.T) {
	for _, network := range append([]string{"unix", "tcp"}, overShm...) {
		t.Run(network, func(t *testing.T) {
			hold(t)
			lis := listen(t, targetFor(t, network))
			start(t, serve(t, aware(), nearcall.DisableSpinning()), lis)
			client := dial(t, lis.Target(), nearcall.WithDisableSpinning())
			for range 200 {
				if _, err := client.UnaryCall(t.Context(), &testpb.SimpleRequest{}); err != nil {
					t.Fatal(err)
				}
			}
			if err := callAll(t.Context(), client); err != nil {
				t.Error(err)
			}
		})
	}
}

// wantFallback checks that unix targets fall back to a socket, and that calls of shm
// targets fail with why.
func wantFallback(t *testing.T, reach way, why string) {
	t.Helper()
	if network, err := reach(t, "unix+shm"); network != "unix" || err != nil {
		t.Errorf("a unix target is reached over %q, %v", network, err)
	}
	_, err := reach(t, "shm")
	wantCode(t, err, codes.Unavailable)
	for _, hint := range []string{"shared memory cannot be used", why} {
		if err == nil || !strings.Contains(err.Error(), hint) {
			t.Errorf("%v does not mention %q", err, hint)
		}
	}
}

// wantUpgrade checks that connections become shared memory.
func wantUpgrade(t *testing.T, reach way) {
	t.Helper()
	for _, network := range overShm {
		if over, err := reach(t, network); over != "shm" || err != nil {
			t.Errorf("%s: a target is reached over %q, %v", network, over, err)
		}
	}
}

// As in a sandbox that forbids memfd_create. Only servers call it.
func TestWhereNoMemoryMayBeMadeConnectionsStaySockets(t *testing.T) {
	for _, errno := range []syscall.Errno{unix.EPERM, unix.ENOSYS} {
		t.Run(errno.Error(), func(t *testing.T) {
			hold(t)
			r := newRemote(t, remoteRefuses+"="+strconv.Itoa(int(errno)))
			r.sides(func(t *testing.T, side string, reach way) {
				if side == "client" {
					wantUpgrade(t, reach)
					return
				}
				wantFallback(t, reach, "memfd_create: "+errno.Error())
			})
		})
	}
}

// TestWhereDescriptorsRunOutConnectionsStaySockets raises a process's limit one
// descriptor at a time until there are enough. So each step that needs descriptors
// fails once, on either side.
func TestWhereDescriptorsRunOutConnectionsStaySockets(t *testing.T) {
	hold(t)
	r := newRemote(t)
	steps := map[string][]string{
		"server": {
			"memfd_create: too many open files",
			"socketpair: too many open files",
		},
		"client": {
			"0 descriptors have come with the answer",
			"1 descriptors have come with the answer",
		},
	}
	r.sides(func(t *testing.T, side string, reach way) {
		said := ""
		for room := 1; ; room++ { // the first is for the socket
			lift := r.limitDescriptors(t, room)
			network, err := reach(t, "unix+shm")
			if network == "shm" && err == nil {
				wantUpgrade(t, reach)
				lift()
				break
			}
			if network != "unix" || err != nil || room > 20 {
				t.Fatalf("with room for %d descriptors a unix target is reached over %q, %v", room, network, err)
			}
			_, err = reach(t, "shm")
			lift()
			wantCode(t, err, codes.Unavailable)
			if err == nil || !strings.Contains(err.Error(), "shared memory cannot be used") {
				t.Errorf("with room for %d descriptors: %v", room, err)
			}
			said += fmt.Sprintln(err)
		}
		for _, hint := range steps[side] {
			if !strings.Contains(said, hint) {
				t.Errorf("no error mentions %q:\n%s", hint, said)
			}
		}
		wantUpgrade(t, reach)
	})
}

// A server that has no descriptor for a connection accepts it when there is one again.
func TestACallWaitsForAServerThatIsOutOfDescriptors(t *testing.T) {
	hold(t)
	r := newRemote(t)
	for _, network := range overShm {
		lift := r.limitDescriptors(t, 0)
		type outcome struct {
			over string
			err  error
		}
		ended := make(chan outcome, 1)
		go func() {
			over, err := reach(t.Context(), r.at(network))
			ended <- outcome{over, err}
		}()
		select {
		case got := <-ended:
			t.Errorf("%s: a call ends: %+v", network, got)
		case <-time.After(100 * time.Millisecond):
		}
		lift()
		if got := <-ended; got.over != "shm" || got.err != nil {
			t.Errorf("%s: a call goes over %q, %v", network, got.over, got.err)
		}
		r.settles(t)
	}
}

func TestWhereMemoryRunsOutConnectionsStaySockets(t *testing.T) {
	hold(t)
	r := newRemote(t)
	r.sides(func(t *testing.T, side string, reach way) {
		wantUpgrade(t, reach)
		const slabs = 4 << 20 << (4 * (^uint(0) >> 63)) // of each side; the rest is less than 1 MiB
		for name, test := range map[string]struct {
			limit func(t *testing.T) (lift func())
			why   string
		}{
			"no file of the ring's size":         {func(t *testing.T) func() { return r.limit(t, unix.RLIMIT_FSIZE, 4096) }, "ftruncate: file too large"},
			"no file of the slabs' size":         {func(t *testing.T) func() { return r.limit(t, unix.RLIMIT_FSIZE, 1<<20) }, "ftruncate: file too large"},
			"not enough addresses for its slabs": {func(t *testing.T) func() { return r.limitMemory(t, slabs) }, "mmap: cannot allocate memory"},
		} {
			if side == "client" && strings.HasPrefix(name, "no file") {
				continue // a client creates no file
			}
			t.Run(name, func(t *testing.T) {
				wantFallback(t, func(t *testing.T, network string) (string, error) {
					defer test.limit(t)()
					return reach(t, network)
				}, test.why)
				wantUpgrade(t, reach)
			})
		}
	})
}
