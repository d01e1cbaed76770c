package test

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/testing/child"
	"github.com/nearcall/nearcall/internal/testing/leak"
)

// Environment variables of the child process that makes one call.
const (
	oneCallAt   = "NEARCALL_TEST_ONE_CALL"
	oneCallOver = "NEARCALL_TEST_ONE_CALL_OVER"
	oneCallSize = "NEARCALL_TEST_ONE_CALL_SIZE" // of the reply, in bytes
)

// TestMakeOneCallInAProcess is a client that other tests suspend.
func TestMakeOneCallInAProcess(t *testing.T) {
	target := os.Getenv(oneCallAt)
	if target == "" {
		t.Skip("only in a child process")
	}
	size, err := strconv.Atoi(os.Getenv(oneCallSize))
	if err != nil {
		t.Fatal(err)
	}
	told := make(chan os.Signal, 1)
	signal.Notify(told, syscall.SIGTERM)
	conn, err := nearcall.NewClient(target, over(os.Getenv(oneCallOver))...)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	child.Ready(target)
	if err := lastReply(testpb.NewTestServiceClient(conn), size); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	<-told
}

// A client that reads nothing delays GracefulStop for some seconds; Stop ends even
// that. When the client resumes it receives as much of its reply as the system has
// buffered: with shared memory all of it, because the client maps the memory, too.
func TestGracefulStopAndAClientThatIsStopped(t *testing.T) {
	type run struct {
		size  int
		hurry bool
	}
	for _, network := range networks("unix", "tcp") {
		runs := []run{{100, false}, {100, true}}
		if slices.Contains(overShm, network) {
			runs = append(runs, run{3 << 20, false})
		}
		for _, r := range runs {
			t.Run(fmt.Sprintf("%s/size=%d/Stop=%t", network, r.size, r.hurry), func(t *testing.T) {
				t.Parallel() // with other slow tests
				running, release := make(chan struct{}), make(chan struct{})
				srv := nearcall.NewServer()
				testpb.RegisterTestServiceServer(srv, farewells{running: running, release: release})
				lis := listen(t, targetFor(t, network))
				start(t, srv, lis)
				p, err := child.Start("TestMakeOneCallInAProcess", oneCallAt+"="+lis.Target(), oneCallOver+"="+network, fmt.Sprintf("%s=%d", oneCallSize, r.size))
				if err != nil {
					t.Fatal(err)
				}
				<-running
				suspend(t, p)
				stopped := make(chan error, 1)
				began := time.Now()
				go func() {
					srv.GracefulStop()
					stopped <- nil
				}()
				close(release)
				select {
				case <-stopped:
					t.Errorf("GracefulStop returned after %v", time.Since(began))
				case <-time.After(2 * time.Second):
					if r.hurry {
						srv.Stop()
					}
					began := time.Now()
					_ = outcome(t, "GracefulStop", stopped)
					if took := time.Since(began); r.hurry && took > 2*time.Second {
						t.Errorf("with Stop it took %v", took)
					}
				}
				signalChild(t, p, syscall.SIGCONT)
				if err := p.End(syscall.SIGTERM); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

func signalChild(t *testing.T, p *child.Process, s os.Signal) {
	t.Helper()
	if err := p.Signal(s); err != nil {
		t.Error(err)
	}
}

// suspend suspends all threads of a child.
func suspend(t *testing.T, p *child.Process) {
	t.Helper()
	signalChild(t, p, syscall.SIGSTOP)
	leak.Eventually(t, "the child stops", func() bool {
		threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.Pid()))
		for _, thread := range threads {
			if stateIn(thread) != "T" {
				return false
			}
		}
		return len(threads) > 0
	})
}
