package reserve

import (
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"
)

// collects runs the collector, and lets look run after it.
func collects() {
	runtime.GC()
	time.Sleep(time.Millisecond)
}

// nothing waits until nothing is held.
func nothing(t *testing.T) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); Active(); collects() {
		if time.Now().After(end) {
			t.Fatalf("%d bytes are still held although no large messages come", Held())
		}
	}
	runtime.GC() // what was let go counts as live until then
}

func TestMemoryIsHeldWhileLargeMessagesCome(t *testing.T) {
	nothing(t)
	Received(Large - 1)
	if n := Held(); n != 0 {
		t.Fatalf("%d bytes are held for a small message", n)
	}
	for range 10 {
		Received(Large)
		if n := Held(); n != Size {
			t.Fatalf("%d bytes are held, want %d", n, Size)
		}
		collects()
	}
	nothing(t)
	Received(1 << 20)
	if n := Held(); n != Size {
		t.Errorf("%d bytes are held when large messages come again", n)
	}
	nothing(t)
}

func TestTheCollectorRunsLessOften(t *testing.T) {
	var sink []byte
	collections := func(received int) uint32 {
		nothing(t)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range 200 {
			Received(received)
			sink = make([]byte, 1<<20)
		}
		runtime.ReadMemStats(&after)
		return after.NumGC - before.NumGC
	}
	without, with := collections(0), collections(1<<20)
	runtime.KeepAlive(sink)
	if with > without/2 {
		t.Errorf("200 MB of large messages make %d collections, and %d without memory that is held", with, without)
	}
	nothing(t)
}

func TestHeldMemoryHasNoPages(t *testing.T) {
	resident := func() int {
		status, err := os.ReadFile("/proc/self/status")
		if err != nil {
			t.Skip("the system does not say how much memory is resident: ", err)
		}
		_, after, _ := strings.Cut(string(status), "VmRSS:")
		n, err := strconv.Atoi(strings.Fields(after)[0])
		if err != nil {
			t.Fatal(err)
		}
		return n << 10
	}
	nothing(t)
	debug.FreeOSMemory()
	before := resident()
	Received(Large)
	if Held() != Size {
		t.Fatal("nothing is held")
	}
	if more := resident() - before; more > Size/2 {
		t.Errorf("%d bytes more are resident", more)
	}
	nothing(t)
}

func TestHowMuchIsUseful(t *testing.T) {
	small := heap{percent: 100, limit: math.MaxInt64, total: 20 << 20, live: 1 << 20}
	for name, c := range map[string]struct {
		of   func(*heap)
		held int
		want int
	}{
		"a small heap":                    {func(*heap) {}, 0, Size},
		"as much of its own":              {func(h *heap) { h.live = Size }, 0, 0},
		"what is held does not count":     {func(h *heap) { h.live = Size + 1<<20 }, Size, Size},
		"GOGC=400":                        {func(h *heap) { h.percent = 400 }, 0, Size / 4},
		"GOGC=50":                         {func(h *heap) { h.percent = 50 }, 0, Size},
		"GOGC=off":                        {func(h *heap) { h.percent = math.MaxUint64 }, 0, 0},
		"GOGC=0":                          {func(h *heap) { h.percent = 0 }, 0, 0},
		"a limit that is far":             {func(h *heap) { h.limit = 1 << 30 }, 0, Size},
		"a limit that is near":            {func(h *heap) { h.limit = 150 << 20 }, 0, 0},
		"a limit below what is held":      {func(h *heap) { h.limit = 1 << 20 }, Size, 0},
		"a limit that has become near":    {func(h *heap) { h.limit, h.total = 1<<30, 700<<20 }, Size, 0},
		"a limit, and what is held aside": {func(h *heap) { h.limit, h.total = 256<<20, 70<<20 }, Size, Size},
	} {
		t.Run(name, func(t *testing.T) {
			h := small
			c.of(&h)
			if n := useful(h, c.held, c.held); n != c.want {
				t.Errorf("%d bytes are useful, want %d", n, c.want)
			}
		})
	}
}

func TestTheRuntimeSaysWhatIsAsked(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(250))
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(3 << 30))
	runtime.GC()
	if h := measure(); h.percent != 250 || h.limit != 3<<30 || h.total == 0 || h.live == 0 {
		t.Errorf("the runtime says %+v", h)
	}
	debug.SetGCPercent(-1)
	if h := measure(); useful(h, 0, 0) != 0 {
		t.Errorf("without collections %+v is said, and memory is held", h)
	}
}
