package quic

import (
	"crypto/tls"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/grpclog"

	"github.com/nearcall/nearcall/internal/registry"
)

// A logRecorder is grpclog's default, which prints errors, and keeps the last line about a failed
// handshake.
type logRecorder struct {
	grpclog.LoggerV2
	mu   sync.Mutex
	last string
}

var logs = &logRecorder{LoggerV2: grpclog.NewLoggerV2(io.Discard, io.Discard, os.Stderr)}

func (l *logRecorder) Infoln(args ...any) {
	if line := fmt.Sprintln(args...); strings.Contains(line, "handshake") {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.last = line
	}
}

// logLevel is the variable with grpclog's level. A process that has it logs as usual.
const logLevel = "GRPC_GO_LOG_SEVERITY_LEVEL"

func TestFailedHandshakesAreLogged(t *testing.T) {
	if os.Getenv(logLevel) != "" {
		t.Skip(logLevel + " is set")
	}
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t, &registry.Settings{}, nil)
		_, err := n.dialer(t, &registry.Settings{TLS: &tls.Config{ServerName: "server.test"}}).Dial(t.Context())
		if err == nil {
			t.Fatal("a client that does not trust the server is connected")
		}
		t.Log(err)
		time.Sleep(time.Second)
		synctest.Wait()
		logs.mu.Lock()
		defer logs.mu.Unlock()
		if want := "[nearcall] the security handshake with 1.0.0.2:1 failed: "; !strings.HasPrefix(logs.last, want) || !strings.Contains(logs.last, "certificate") {
			t.Errorf("the log has %q, want %q and the certificate", logs.last, want)
		}
	})
}
