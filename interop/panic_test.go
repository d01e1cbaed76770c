package interop

import (
	"context"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"github.com/nearcall/nearcall"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"
)

// Item 39 where the oracle cannot be compared: grpc-go's client waits forever for a handler
// that called runtime.Goexit, and a panic ends the process.

type panicking struct {
	pb.UnimplementedTestServiceServer
	end func()
}

func (p panicking) EmptyCall(_ context.Context, m *pb.Empty) (*pb.Empty, error) {
	p.end()
	return m, nil
}

func (p panicking) FullDuplexCall(duplexServer) error {
	p.end()
	return nil
}

func panickingConfig(end func()) *Config {
	return &Config{Register: []func(grpc.ServiceRegistrar){func(r grpc.ServiceRegistrar) {
		pb.RegisterTestServiceServer(r, panicking{end: end})
	}}}
}

func TestGoexitOnWorker(t *testing.T) {
	l, err := inproc(nearcall.HandlerPlacement(nearcall.Workers))(panickingConfig(runtime.Goexit))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Stop()
	defer l.Close()
	ctx, cancel := context.WithTimeout(context.Background(), caseTimeout)
	defer cancel()
	client := pb.NewTestServiceClient(l.Conn)
	for range 3 {
		if _, err := client.EmptyCall(ctx, &pb.Empty{}); status.Code(err) != codes.Internal {
			t.Errorf("unary: got %v, want Internal", err)
		}
		s, err := client.FullDuplexCall(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Recv(); status.Code(err) != codes.Internal {
			t.Errorf("stream: got %v, want Internal", err)
		}
	}
}

// TestPanicEndsProcess runs itself in a child process that a handler's panic must end.
func TestPanicEndsProcess(t *testing.T) {
	const variable = "NEARCALL_INTEROP_PANIC"
	for _, env := range environments {
		if env.Waits {
			continue // a panic of an inline handler reaches the caller: see TestInlinePanicReachesCaller
		}
		if os.Getenv(variable) == env.Name {
			l, err := env.Start(panickingConfig(func() { panic("nobody recovers this") }))
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(context.Background(), caseTimeout)
			defer cancel()
			_, err = pb.NewTestServiceClient(l.Conn).EmptyCall(ctx, &pb.Empty{})
			t.Logf("survived: %v", err)
			return
		}
	}
	if os.Getenv(variable) != "" {
		return
	}
	for _, env := range environments {
		if env.Waits {
			continue
		}
		t.Run(env.Name, func(t *testing.T) {
			cmd := exec.Command(os.Args[0], "-test.run=^TestPanicEndsProcess$")
			cmd.Env = append(os.Environ(), variable+"="+env.Name)
			out, err := cmd.CombinedOutput()
			if err == nil || !strings.Contains(string(out), "panic: nobody recovers this") {
				t.Errorf("the process did not end by the panic: %v\n%s", err, out)
			}
		})
	}
}

func TestInlinePanicReachesCaller(t *testing.T) {
	l, err := inproc(nearcall.HandlerPlacement(nearcall.Inline))(panickingConfig(func() { panic("to the caller") }))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Stop()
	defer l.Close()
	defer func() {
		if r := recover(); r == nil || !strings.Contains(toString(r), "to the caller") {
			t.Errorf("the caller recovered %v", r)
		}
	}()
	_, err = pb.NewTestServiceClient(l.Conn).EmptyCall(context.Background(), &pb.Empty{})
	t.Errorf("the call returned %v", err)
}

func toString(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case error:
		return v.Error()
	case interface{ String() string }:
		return v.String()
	}
	return ""
}
