package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/testing/leak"
	"github.com/nearcall/nearcall/internal/testing/needs"
)

func TestMain(m *testing.M) { leak.Main(m) }

// serve serves until the test ends, and returns the target.
func serve(t *testing.T, target string) string {
	t.Helper()
	lis, err := nearcall.Listen(target)
	if err != nil {
		t.Fatal(err)
	}
	srv := newServer(lis.Target())
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(lis) }()
	t.Cleanup(func() {
		srv.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return lis.Target()
}

func TestTargets(t *testing.T) {
	needs.UnixSockets(t)
	first, second := serve(t, "tcp:127.0.0.1:0"), serve(t, "tcp:127.0.0.1:0")
	socket := serve(t, "unix:"+filepath.Join(t.TempDir(), "s"))
	address := strings.TrimPrefix(first, "tcp:")
	_, port, _ := strings.Cut(address, ":")
	for _, c := range []struct {
		target string
		from   []string
	}{
		{address + "," + strings.TrimPrefix(second, "tcp:"), []string{first, second}},
		{address + "," + socket, []string{first, socket}},
		{"dns:///localhost:" + port, []string{first}},
		{socket, []string{socket}},
	} {
		conn, err := dial(c.target)
		if err != nil {
			t.Errorf("%s: %v", c.target, err)
			continue
		}
		counts := make(map[string]int)
		leak.Eventually(t, "calls to "+c.target+" reach all servers", func() bool {
			text, err := call(conn)
			if err != nil {
				t.Errorf("%s: %v", c.target, err)
			}
			_, from, _ := strings.Cut(text, ", from ")
			counts[from]++
			return len(counts) >= len(c.from)
		})
		for _, from := range c.from {
			if counts[from] == 0 {
				t.Errorf("%s: the calls reached %v", c.target, counts)
			}
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}
}
