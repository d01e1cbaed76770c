package promises

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// cpp is the face of the C++ library's clients. Their program is cpp/test/caller.cpp.
const cpp = "C++"

// A cppCaller calls with a process, which gets a line for each call and answers with a line.
type cppCaller struct {
	process *exec.Cmd
	in      io.WriteCloser
	read    sync.WaitGroup

	mu    sync.Mutex
	last  int
	calls map[string]chan error // by number
}

func dialCPP(w *world, _ *line) caller { return startCPP(w) }

// startCPP starts the program. NEARCALL_CPP is the directory in which CMake has built cpp/test.
func startCPP(w *world, args ...string) *cppCaller {
	dir := os.Getenv("NEARCALL_CPP")
	if dir == "" {
		w.Skip("NEARCALL_CPP is not set: make cpp builds the programs and runs this")
	}
	c := &cppCaller{process: exec.Command(filepath.Join(dir, "test", "caller"), append([]string{w.reached}, args...)...), calls: make(map[string]chan error)}
	c.process.Stderr = os.Stderr
	in, err := c.process.StdinPipe()
	if err != nil {
		w.Fatal(err)
	}
	out, err := c.process.StdoutPipe()
	if err != nil {
		w.Fatal(err)
	}
	if err := c.process.Start(); err != nil {
		w.Fatal(err)
	}
	c.in = in
	c.read.Go(func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			id, rest, _ := strings.Cut(lines.Text(), " ")
			number, text, _ := strings.Cut(rest, " ")
			code, err := strconv.Atoi(number)
			if err == nil {
				err = status.Error(codes.Code(code), text)
			}
			order.Add(1)
			c.mu.Lock()
			c.calls[id] <- err
			c.mu.Unlock()
		}
	})
	return c
}

func (c *cppCaller) close() error {
	_ = c.in.Close()
	c.read.Wait()
	return c.process.Wait()
}

// begin begins a call. The result waits for its end.
func (c *cppCaller) begin(ctx context.Context, kind string, args ...any) func() error {
	c.mu.Lock()
	c.last++
	id, done := strconv.Itoa(c.last), make(chan error, 1)
	c.calls[id] = done
	c.mu.Unlock()
	timeout := 0
	if at, ok := ctx.Deadline(); ok {
		timeout = int(time.Until(at).Milliseconds())
	}
	line := fmt.Sprintln(append([]any{kind, id, timeout}, args...)...)
	key, value := "-", "-"
	md, _ := metadata.FromOutgoingContext(ctx)
	for k, v := range md {
		key, value = k, v[0]
	}
	_, err := fmt.Fprintln(c.in, strings.TrimSpace(line), key, value)
	stop := context.AfterFunc(ctx, func() {
		if ctx.Err() == context.Canceled {
			_, _ = fmt.Fprintln(c.in, "cancel", id)
		}
	})
	return func() error {
		defer stop()
		if err != nil {
			return err
		}
		return <-done
	}
}

func (c *cppCaller) unary(ctx context.Context, in *pb.SimpleRequest) (*pb.SimpleResponse, error) {
	return new(pb.SimpleResponse), c.begin(ctx, "call", len(in.GetPayload().GetBody()), in.GetResponseSize())()
}

func (c *cppCaller) upload(ctx context.Context) func() error   { return c.begin(ctx, "upload") }
func (c *cppCaller) download(ctx context.Context) func() error { return c.begin(ctx, "download") }

// noShmCPP is a client in C++ without shared memory at a shm: listener.
var noShmCPP = refusal{target: "shm:", attempt: func(w *world) string {
	w.reached = "unix:" + w.addr.String()
	c := startCPP(w, "--socket")
	if _, err := c.unary(w.Context(), new(pb.SimpleRequest)); err == nil {
		w.Error("a call has succeeded")
	}
	pid := c.process.Process.Pid
	if err := c.close(); err != nil {
		w.Error(err)
	}
	return fmt.Sprintf("refused process %d of user %d at %s: the listener takes shared memory only", pid, os.Getuid(), w.addr)
}}
