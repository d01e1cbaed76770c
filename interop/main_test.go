package interop

import (
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/grpclog"
)

// shortEnvironments are those of -short: one of each transport, of each kind of loop, and of each face that a server has.
var shortEnvironments = []string{
	"grpc-go", "inproc", "inproc-coroutines", "tcp", "shm", "ws", "quic", "grpc-client", "inproc-grpc-conn",
}

// TestMain fails if goroutines outlive the tests.
func TestMain(m *testing.M) {
	grpclog.SetLoggerV2(quietLogger{grpclog.NewLoggerV2(io.Discard, io.Discard, io.Discard)})
	flag.Parse()
	if testing.Short() {
		environments = slices.DeleteFunc(environments, func(env Env) bool { return !slices.Contains(shortEnvironments, env.Name) })
	}
	code := m.Run()
	if code == 0 {
		if left := leaked(5 * time.Second); len(left) > 0 {
			fmt.Fprintf(os.Stderr, "%d goroutines leaked:\n\n%s\n", len(left), strings.Join(left, "\n\n"))
			code = 1
		}
	}
	os.Exit(code)
}

// leaked returns the stacks of goroutines that are left after patience.
func leaked(patience time.Duration) []string {
	end := time.Now().Add(patience)
	for {
		left := strangers()
		if len(left) == 0 || time.Now().After(end) {
			return left
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// harmless are goroutines of the runtime, of testing, and of packages that start one
// forever.
var harmless = []string{
	"testing.(*M).",
	"testing.(*T).",
	"testing.runTests",
	"os/signal.",
	"runtime.ReadTrace",
	"interop.strangers",
}

func strangers() []string {
	buf := make([]byte, 4<<20)
	buf = buf[:runtime.Stack(buf, true)]
	var left []string
next:
	for _, g := range strings.Split(string(buf), "\n\n") {
		for _, h := range harmless {
			if strings.Contains(g, h) {
				continue next
			}
		}
		left = append(left, g)
	}
	return left
}

// quietLogger drops grpc-go's logs. grpc-go's interop client reports failures with Fatal,
// which would end the test binary: so Fatal panics instead, and foreign_test.go recovers.
type quietLogger struct{ grpclog.LoggerV2 }

type fatal string

func (quietLogger) Fatal(args ...any)                 { panic(fatal(fmt.Sprint(args...))) }
func (quietLogger) Fatalln(args ...any)               { panic(fatal(fmt.Sprintln(args...))) }
func (quietLogger) Fatalf(format string, args ...any) { panic(fatal(fmt.Sprintf(format, args...))) }
