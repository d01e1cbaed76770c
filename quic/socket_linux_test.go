package quic

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// smallBuffers is the environment variable of a process whose sockets have smaller buffers than
// are wanted.
const smallBuffers = "NEARCALL_TEST_SMALL_BUFFERS"

// A process whose sockets' buffers are small says so once, in gRPC's log. Nothing is written to
// stderr unless that log goes there.
func TestSmallBuffersAreReportedToTheLogger(t *testing.T) {
	if os.Getenv(smallBuffers) != "" {
		wantedBuffer = 1<<31 - 1 // the system gives less, also to root
		_, target := serve(t, service{})
		if _, err := dial(t, target).UnaryCall(t.Context(), empty); err != nil {
			t.Error(err)
		}
		return
	}
	for _, c := range []struct {
		level string
		want  int
	}{{"", 0}, {"warning", 1}} {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.count=1")
		cmd.Env = append(os.Environ(), smallBuffers+"=1", "GRPC_GO_LOG_SEVERITY_LEVEL="+c.level, "GORACE=atexit_sleep_ms=0")
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		if out, err := cmd.Output(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if got := strings.Count(stderr.String(), "the receive buffer of UDP sockets"); got != c.want || strings.Count(stderr.String(), "\n") != c.want {
			t.Errorf("with the level %q stderr has %q", c.level, &stderr)
		}
	}
}
