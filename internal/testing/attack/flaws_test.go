//go:build linux

package attack

import (
	"bytes"
	"context"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/nearcall/nearcall"
)

// flaws are attacks on servers with a deliberate flaw, which one call triggers. If the
// harness did not find each of them beyond its bounds, it would not find real ones either.
var flaws = []*Attack{
	flawOf("memory"), flawOf("retained"), flawOf("cpu"), flawOf("descriptors"), flawOf("threads"),
	flawOf("crash"), flawOf("stop"), flawOf("deaf"),
}

func flawOf(name string) *Attack {
	return &Attack{
		Name: "flaw-" + name,
		What: "one call, which sets off the flaw " + name,
		Path: overTCP, Full: 1, Short: 1,
		server: []nearcall.ServerOption{nearcall.UnaryInterceptor((&flaw{name: name}).intercept), nearcall.WaitForHandlers(name == "stop")},
		Run: func(a *Attacker) error {
			p, err := a.enter(a.over)
			if err != nil {
				return err
			}
			return p.write(p.open(nil, "UnimplementedCall", request{message: true, ends: true}))
		},
	}
}

// A flaw is an interceptor of the server. A call to UnimplementedCall triggers it.
type flaw struct {
	name string

	mu    sync.Mutex
	hoard [][]byte
	off   bool
}

func (f *flaw) intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if info.FullMethod == testpb.TestService_UnimplementedCall_FullMethodName {
		return &testpb.Empty{}, f.setOff(ctx)
	}
	f.mu.Lock()
	deaf := f.off && f.name == "deaf"
	f.mu.Unlock()
	if deaf {
		<-ctx.Done()
	}
	return handler(ctx, req)
}

func (f *flaw) setOff(ctx context.Context) error {
	f.mu.Lock()
	f.off = true
	f.mu.Unlock()
	switch f.name {
	case "memory": // held while the call is open
		hoard := bytes.Repeat([]byte{1}, 200<<20)
		<-ctx.Done()
		runtime.KeepAlive(hoard)
	case "retained":
		f.mu.Lock()
		f.hoard = append(f.hoard, bytes.Repeat([]byte{1}, 100<<20))
		f.mu.Unlock()
	case "cpu":
		return burn(3 * time.Second)
	case "descriptors":
		for range 300 {
			if _, err := syscall.Open(os.DevNull, syscall.O_RDONLY|syscall.O_CLOEXEC, 0); err != nil {
				return err
			}
		}
	case "threads":
		for range 100 {
			go func() { _ = syscall.Nanosleep(&syscall.Timespec{Sec: 600}, nil) }()
		}
	case "crash":
		panic("the flaw crash was set off")
	case "stop": // Stop waits for handlers in this server
		for { // select {} would end a process without cgo: all of its goroutines may be asleep
			time.Sleep(time.Hour)
		}
	}
	return nil
}

// burn uses d of processor time, however long that takes on a busy machine.
func burn(d time.Duration) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	used := func() (time.Duration, error) {
		var now unix.Timespec
		err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now)
		return time.Duration(now.Nano()), err
	}
	begun, err := used()
	for now := begun; err == nil && now < begun+d; {
		now, err = used()
	}
	return err
}
