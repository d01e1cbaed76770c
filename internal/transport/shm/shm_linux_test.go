package shm

import (
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/nearcall/nearcall/internal/testing/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// sockets returns two connected unix sockets.
func sockets(t testing.TB) (client, server *net.UnixConn) {
	t.Helper()
	client, far, err := pair()
	if err != nil {
		t.Fatal(err)
	}
	if server, err = socketOf(far); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = client.Close()
		_ = server.Close()
	})
	return client, server
}

// agree does the handshake over a and b.
func agree(t testing.TB, a, b *net.UnixConn) (client, server *Conn) {
	t.Helper()
	answered := make(chan error, 1)
	go func() {
		var err error
		server, _, err = answer(b)
		answered <- err
	}()
	client, _, err := Offer(a, plenty)
	if err != nil {
		t.Error(err)
	}
	if err := <-answered; err != nil {
		t.Error(err)
	}
	if t.Failed() {
		t.FailNow()
	}
	return client, server
}

// connected returns both ends of a connection of shared memory.
func connected(t testing.TB) (client, server *Conn) {
	t.Helper()
	a, b := sockets(t)
	client, server = agree(t, a, b)
	t.Cleanup(func() {
		_ = client.Close()
		_ = server.Close()
	})
	return client, server
}

// eventually polls f until it returns true.
func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	for begin := time.Now(); !f(); runtime.Gosched() {
		if time.Since(begin) > 10*time.Second {
			t.Fatalf("it did not come about that %s", what)
		}
	}
}

// sleeps waits until c's Read sleeps.
func sleeps(t testing.TB, c *Conn) {
	t.Helper()
	w := c.mine.word(atAsleep)
	eventually(t, "the Read sleeps", func() bool { return w.Load()&1 == 1 })
}

// waits waits until c's Write waits for room.
func waits(t testing.TB, c *Conn) {
	t.Helper()
	w := c.mine.word(atWants)
	eventually(t, "the Write waits for room", func() bool { return w.Load()&1 == 1 })
}

// soon receives from done, and fails the test if that takes long.
func soon[T any](t testing.TB, what string, done <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-done:
	case <-time.After(10 * time.Second):
		t.Fatalf("%s: it does not end", what)
	}
	return v
}

// A holding counts what the process holds.
type holding struct{ descriptors, mappings int }

func held(t testing.TB) (h holding) {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	h.descriptors = len(all)
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	h.mappings = strings.Count(string(maps), "memfd:nearcall")
	return h
}

// leavesNothing runs f, which must close what it opens, and checks that no descriptor and
// no mapping is left.
func leavesNothing(t testing.TB, f func()) {
	t.Helper()
	a, b := sockets(t) // opens what the runtime's network poller keeps open
	_, _ = a.Close(), b.Close()
	before := held(t)
	f()
	if after := held(t); after != before {
		t.Errorf("the process held %+v, and holds %+v", before, after)
	}
}
