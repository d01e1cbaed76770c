// Package foreign runs the tests of a Python client against nearcall's server. The client
// was written only from docs/protocol.md and docs/shm.md: see README.md.
package foreign

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	_ "google.golang.org/grpc/encoding/gzip"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/keepalive"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/testing/needs"
)

func TestPythonClientSpeaksTheProtocol(t *testing.T) {
	needs.Program(t, "python3")
	needs.UnixSockets(t)
	if exec.Command("python3", "-c", "import sys; sys.exit(sys.version_info < (3, 10))").Run() != nil {
		t.Skip("needs Python 3.10 or later")
	}
	readPrograms(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "python3", "-B", "-m", "unittest", "discover", "-v")
	cmd.Env = append(cmd.Environ(), "NEARCALL_HOST=1") // tells host.py that this test starts servers
	var report bytes.Buffer
	cmd.Stderr = &report
	answers, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	questions, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	h := &host{dir: t.TempDir(), servers: map[string]*served{}}
	t.Cleanup(h.stop)
	for lines := bufio.NewScanner(questions); lines.Scan(); {
		fmt.Fprintln(answers, h.answer(strings.Fields(lines.Text())))
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v\n%s", err, report.String())
		return
	}
	t.Logf("%s", report.String())
}

// readPrograms opens the files that Python will read. Otherwise go test would return a
// cached result although they have changed: it considers only files that this process has
// opened.
func readPrograms(t *testing.T) {
	for _, pattern := range []string{"*.py", "nearcall/*.py", "../../internal/wire/testdata/*/*.json",
		"../../internal/wire/testdata/*.json", "../../internal/transport/shm/testdata/*.json"} {
		paths, err := filepath.Glob(pattern)
		if err != nil || len(paths) == 0 {
			t.Fatalf("no files %s: %v", pattern, err)
		}
		for _, path := range paths {
			if _, err := os.ReadFile(path); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// host starts and stops servers for the Python tests. A line on their standard output is a
// request, and a line on their standard input the response.
type host struct {
	dir     string
	servers map[string]*served
}

type served struct {
	server  *nearcall.Server
	service *service
	done    chan struct{}
}

func (h *host) stop() {
	for _, s := range h.servers {
		s.server.Stop()
		<-s.done
	}
}

func (h *host) answer(question []string) string {
	if len(question) < 2 {
		return "error: a question has two words at least"
	}
	if question[0] == "serve" {
		target, err := h.serve(question[1], question[2:])
		if err != nil {
			return "error: " + err.Error()
		}
		return target
	}
	s := h.servers[question[1]]
	if s == nil {
		return "error: no server at " + question[1]
	}
	switch question[0] {
	case "open": // let one call through the gate
		select {
		case s.service.gate <- struct{}{}:
			return "open"
		case <-time.After(10 * time.Second):
			return "error: no call waits"
		}
	case "ended": // the error of a context that ended at the gate, within some seconds; or none
		seconds, err := strconv.ParseFloat(question[2], 64)
		if err != nil {
			return "error: " + err.Error()
		}
		select {
		case err := <-s.service.ended:
			return err.Error()
		case <-time.After(time.Duration(seconds * float64(time.Second))):
			return "none"
		}
	case "drain":
		go s.server.GracefulStop()
		return "draining"
	case "stop":
		s.server.Stop()
		return "stopped"
	}
	return "error: unknown question " + question[0]
}

// serve starts a server. The options are words NAME=NUMBER.
func (h *host) serve(network string, words []string) (string, error) {
	target := network + ":127.0.0.1:0"
	if network != "tcp" {
		target = network + ":" + filepath.Join(h.dir, strconv.Itoa(len(h.servers)))
	}
	opts, err := options(words)
	if err != nil {
		return "", err
	}
	lis, err := nearcall.Listen(target)
	if err != nil {
		return "", err
	}
	s := &served{server: nearcall.NewServer(opts...), service: newService(), done: make(chan struct{})}
	testpb.RegisterTestServiceServer(s.server, s.service)
	go func() {
		defer close(s.done)
		s.server.Serve(lis)
	}()
	target = lis.Target()
	h.servers[target] = s
	return target, nil
}

func options(words []string) ([]nearcall.ServerOption, error) {
	opts := []nearcall.ServerOption{nearcall.MaxRecvMsgSize(32 << 20)}
	for _, word := range words {
		name, value, _ := strings.Cut(word, "=")
		n, err := strconv.Atoi(value)
		if err != nil {
			return nil, err
		}
		switch name {
		case "window":
			opts = append(opts, nearcall.InitialWindowSize(int32(n)), nearcall.InitialConnWindowSize(int32(n)))
		case "calls":
			opts = append(opts, nearcall.MaxConcurrentStreams(uint32(n)))
		case "pings": // milliseconds between the server's pings
			opts = append(opts, nearcall.KeepaliveParams(keepalive.ServerParameters{Time: time.Duration(n) * time.Millisecond}))
		case "mintime": // minimum milliseconds between the client's pings
			opts = append(opts, nearcall.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{
				MinTime: time.Duration(n) * time.Millisecond, PermitWithoutStream: true,
			}))
		case "messages": // the largest message that the server accepts
			opts = append(opts, nearcall.MaxRecvMsgSize(n))
		case "upgrade":
			opts = append(opts, nearcall.MaxSharedMemory(0))
		default:
			return nil, fmt.Errorf("unknown option %q", word)
		}
	}
	return opts, nil
}
