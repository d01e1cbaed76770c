package promises

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/grpclog"

	"github.com/nearcall/nearcall/internal/testing/leak"
	_ "github.com/nearcall/nearcall/quic"
)

func TestMain(m *testing.M) {
	grpclog.SetLoggerV2(logs)
	leak.Main(m)
}

// A logRecorder keeps the lines that nearcall logs. Tests that run at the same time find their own by
// the addresses in them.
type logRecorder struct {
	grpclog.LoggerV2

	mu    sync.Mutex
	lines []string
}

var logs = &logRecorder{LoggerV2: grpclog.NewLoggerV2(io.Discard, io.Discard, io.Discard)}

func (l *logRecorder) InfoDepth(_ int, args ...any) { l.Infoln(args...) }

func (l *logRecorder) Infoln(args ...any) {
	if line := fmt.Sprintln(args...); strings.HasPrefix(line, "[nearcall] ") {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.lines = append(l.lines, strings.TrimSpace(line))
	}
}

// with returns the lines that contain text.
func (l *logRecorder) with(text string) (found []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.lines {
		if strings.Contains(line, text) {
			found = append(found, line)
		}
	}
	return found
}
