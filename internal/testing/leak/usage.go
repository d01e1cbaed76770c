package leak

import (
	"net"
	"os"
	"runtime"
	"testing"
)

// A Usage is what a process holds at a point in time.
type Usage struct {
	goroutines, descriptors int
	heap                    uint64
}

// Slack is how much the heap can grow during a run, in bytes.
const Slack = 8 << 20

// Measure returns what the process holds now.
func Measure() Usage {
	if lis, err := net.Listen("tcp", "127.0.0.1:0"); err == nil {
		_ = lis.Close() // makes the runtime open its network poller
	}
	return Usage{len(Find()), descriptors(), Heap()}
}

// Check waits until the process holds no more than u. Cleanups may call it, as Finally.
func (u Usage) Check(t testing.TB) {
	t.Helper()
	Finally(t, "all goroutines end", func() bool { return len(Find()) <= u.goroutines })
	Finally(t, "all descriptors are closed", func() bool { return descriptors() <= u.descriptors })
	if now := Heap(); now > u.heap+Slack {
		t.Errorf("%d bytes are in use, and %d were before", now, u.heap)
	}
}

// descriptors returns how many file descriptors the process has open, 0 if unknown.
func descriptors() int {
	if runtime.GOOS != "linux" {
		return 0 // Wine shows the /proc of the system below it
	}
	all, _ := os.ReadDir("/proc/self/fd")
	return len(all)
}

// Heap returns the bytes in use on the heap.
func Heap() uint64 {
	runtime.GC()
	runtime.GC() // the second collection empties pools
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
