//go:build linux

package attack

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearcall/nearcall/internal/testing/needs"
)

func TestMain(m *testing.M) { core.Main(m) }

func TestAttacks(t *testing.T) { core.Test(t) }

// The harness must find each of the flaws that a server can be given. Otherwise its silence
// would prove nothing.
func TestFlawsAreFound(t *testing.T) {
	needs.Time(t)
	finds := map[string]string{
		"flaw-memory":      "memory ",
		"flaw-retained":    " kept",
		"flaw-cpu":         "CPU ",
		"flaw-descriptors": " descriptors",
		"flaw-threads":     " threads",
		"flaw-crash":       "the process ended: panic: the flaw crash was set off",
		"flaw-stop":        "Stop does not return",
		"flaw-deaf":        "a new client fails",
	}
	for _, a := range flaws {
		t.Run(a.Name, func(t *testing.T) {
			t.Parallel()
			r, err := core.try(t.Context(), a, false)
			if err != nil {
				t.Fatal(err)
			}
			judge(r, true)
			if got := strings.Join(r.beyond, "; "); finds[a.Name] == "" || !strings.Contains(got, finds[a.Name]) {
				t.Errorf("found %q, want %q; the server used %v, the attacker %v", got, finds[a.Name], r.serverCPU, r.attackerCPU)
			}
		})
	}
}

func TestProcessorTimeOfAnotherProcess(t *testing.T) {
	cmd := exec.Command("sh", "-c", "while :; do :; done")
	begun := time.Now()
	if err := cmd.Start(); err != nil {
		t.Skip(err)
	}
	defer func() { _ = cmd.Wait() }()
	defer func() { _ = cmd.Process.Kill() }()
	for {
		used, err := cpuTime(cmd.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		if passed := time.Since(begun); used > passed+time.Second {
			t.Fatalf("a thread has used %v in %v", used, passed)
		}
		if used > 20*time.Millisecond {
			return
		}
	}
}

// Memory that another process wrote stays allocated while this process has it mapped or
// open. It counts once.
func TestSharedMemoryThatAnotherWroteCounts(t *testing.T) {
	const length = 1 << 20
	before, err := sharedMemory()
	if err != nil {
		t.Fatal(err)
	}
	check := func(when string, want int64) {
		t.Helper()
		now, err := sharedMemory()
		if err != nil {
			t.Fatal(err)
		}
		if now-before != want {
			t.Errorf("%s: %d bytes, want %d", when, now-before, want)
		}
	}
	fd, err := unix.MemfdCreate("attack", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Ftruncate(fd, 2*length); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Pwrite(fd, make([]byte, length), 0); err != nil {
		t.Fatal(err)
	}
	check("open", length)
	m, err := unix.Mmap(fd, 0, 2*length, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	check("open and mapped", length)
	if err := syscall.Close(fd); err != nil {
		t.Fatal(err)
	}
	check("mapped", length)
	if err := unix.Munmap(m); err != nil {
		t.Fatal(err)
	}
	check("gone", 0)
}

func TestBounds(t *testing.T) {
	a := &Attack{Name: "a"}
	fine := phase{Calls: 10, P99: time.Millisecond}
	base := result{attack: a, sent: 1 << 20, attackerCPU: 10 * time.Millisecond, before: fine, during: fine, newcomer: fine}
	for _, c := range []struct {
		name   string
		change func(*result)
		want   string // in the full form
	}{
		{"nothing", func(*result) {}, ""},
		{"ten times the memory", func(r *result) { r.sent, r.server.memory = 10<<20, 100<<20 }, ""},
		{"eleven times the memory", func(r *result) { r.sent, r.server.memory = 10<<20, 110<<20 }, "memory 11x"},
		{"shared memory that the attacker has touched, too", func(r *result) { r.attacker.touched, r.server.memory = 50<<20, 400<<20 }, ""},
		{"memory of the attacker's own", func(r *result) { r.sent, r.attacker.memory, r.server.memory = 1<<20, 50<<20, 50<<20 }, "memory 50x"},
		{"memory below the floor", func(r *result) { r.sent, r.server.memory = 1, 32<<20 }, ""},
		{"eleven times the CPU", func(r *result) { r.serverCPU = 110 * time.Millisecond }, "CPU 11x"},
		{"CPU below the floor", func(r *result) { r.attackerCPU, r.serverCPU = 1, 100*time.Millisecond }, ""},
		{"CPU for what was asked", func(r *result) { r.attack, r.serverCPU = &Attack{asked: true}, time.Second }, ""},
		{"slow calls for what was asked", func(r *result) { r.attack, r.during.P99 = &Attack{asked: true}, time.Second }, ""},
		{"descriptors for each of the attacker's", func(r *result) { r.attacker.descriptors, r.server.descriptors = 100, 400 }, ""},
		{"more descriptors", func(r *result) { r.attacker.descriptors, r.server.descriptors = 100, 401 }, "401 descriptors"},
		{"threads", func(r *result) { r.server.threads = 65 }, "65 threads"},
		{"what stays", func(r *result) { r.kept = 40e6 }, "40 MB kept"},
		{"what the runtime keeps", func(r *result) { r.sent, r.server.memory, r.kept = 1<<30, 1<<30, 96<<20 }, ""},
		{"more than that", func(r *result) { r.sent, r.server.memory, r.kept = 1<<30, 1<<30, 97<<20 }, "102 MB kept"},
		{"what is held", func(r *result) { r.attack, r.held = &Attack{release: time.Minute}, 40e6 }, "40 MB held for more than 1m0s"},
		{"what may be held", func(r *result) { r.held = 40e6 }, ""},
		{"a death", func(r *result) { r.died, r.during = "killed at 3 GB", phase{} }, "killed at 3 GB"},
		{"a call that fails", func(r *result) { r.during.Failed, r.during.Failure = 1, "no" }, "1 of 10 honest calls failed: no"},
		{"calls that hang", func(r *result) { r.during.Calls = 0 }, "no honest call ends"},
		{"slow calls", func(r *result) { r.during.P99 = 51 * time.Millisecond }, "p99 of 51 ms"},
		{"calls that were slow before", func(r *result) { r.before.P99, r.during.P99 = 20*time.Millisecond, 190*time.Millisecond }, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := base
			c.change(&r)
			judge(&r, true)
			if got := strings.Join(r.beyond, "; "); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// An excuse covers one bound, up to an amount.
func TestExcuses(t *testing.T) {
	fine := phase{Calls: 10}
	base := result{attackerCPU: 10 * time.Millisecond, sent: 1, during: fine, newcomer: fine}
	for _, c := range []struct {
		excuse  Excuse
		change  func(*result)
		verdict string
	}{
		{Excuse{Memory: 100 << 20}, func(r *result) { r.sent, r.server.memory = 1<<20, 100<<20 }, "known: memory 100x: because"},
		{Excuse{Memory: 100 << 20}, func(r *result) { r.sent, r.server.memory = 1<<20, 101<<20 }, "BEYOND: memory 101x"},
		{Excuse{Each: 10 << 20}, func(r *result) { r.count, r.sent, r.server.memory = 10, 1<<20, 100<<20 }, "known: memory 100x: because"},
		{Excuse{Each: 10 << 20}, func(r *result) { r.count, r.sent, r.server.memory = 9, 1<<20, 100<<20 }, "BEYOND: memory 100x"},
		{Excuse{Memory: 100 << 20}, func(r *result) { r.serverCPU = time.Second }, "BEYOND: CPU 100x"},
		{Excuse{CPU: 100}, func(r *result) { r.serverCPU = time.Second }, "known: CPU 100x: because"},
		{Excuse{CPU: 99}, func(r *result) { r.serverCPU = time.Second }, "BEYOND: CPU 100x"},
		{Excuse{Newcomers: true}, func(r *result) { r.newcomer.Failed = 1 }, "known: new clients fail: because"},
		{Excuse{Newcomers: true}, func(r *result) { r.during.Failed = 1 }, "BEYOND: 1 of 10 honest calls failed: "},
		{Excuse{Newcomers: true}, func(*result) {}, "bounded"},
	} {
		r := base
		c.excuse.Why = "because"
		r.attack = &Attack{Known: &c.excuse}
		c.change(&r)
		judge(&r, true)
		if r.verdict() != c.verdict {
			t.Errorf("got %q, want %q", r.verdict(), c.verdict)
		}
	}
}

// Other processes can make a server seem slow. They cannot make it lose calls.
func TestAnAttackIsMadeAgainOnlyIfItExceedsBoundsOfTime(t *testing.T) {
	fine := phase{Calls: 10}
	base := result{attack: &Attack{}, attackerCPU: 10 * time.Millisecond, sent: 1, before: fine, during: fine, newcomer: fine}
	slow := func(r *result) { r.serverCPU = time.Second }
	for _, c := range []struct {
		name    string
		results []func(*result) // of the tries; the last one goes on
		tries   int
		verdict string
	}{
		{"bounded", []func(*result){func(*result) {}}, 1, "bounded"},
		{"slow once", []func(*result){slow, func(*result) {}}, 2, "bounded"},
		{"slow always", []func(*result){slow}, tries, "BEYOND: CPU 100x"},
		{"late", []func(*result){func(r *result) { r.during.P99 = time.Minute }}, tries, "BEYOND: p99 of 60.0 s"},
		{"busy", []func(*result){func(r *result) { slow(r); r.busy = true }}, tries, "BEYOND: CPU 100x; busy at the end"},
		{"a lost call", []func(*result){func(r *result) { r.during.Failed = 1 }, func(*result) {}}, 1, "BEYOND: 1 of 10 honest calls failed: "},
		{"slow, and a lost call", []func(*result){func(r *result) { slow(r); r.during.Failed = 1 }}, 1, "BEYOND: CPU 100x; 1 of 10 honest calls failed: "},
		{"memory", []func(*result){func(r *result) { r.server.memory = 1 << 30 }}, 1, "BEYOND: memory 1073741824x"},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := 0
			r, err := judged(func() (*result, error) {
				r := base
				c.results[min(n, len(c.results)-1)](&r)
				n++
				return &r, nil
			}, true)
			if err != nil || n != c.tries || r.verdict() != c.verdict {
				t.Errorf("%d tries and %q, want %d and %q; error %v", n, r.verdict(), c.tries, c.verdict, err)
			}
		})
	}
}

func TestTimesAreNotJudgedOnABusyMachine(t *testing.T) {
	r := result{attack: &Attack{}, during: phase{Calls: 1, P99: time.Second}, newcomer: phase{Calls: 1}, serverCPU: time.Hour, busy: true}
	judge(&r, false)
	if len(r.beyond) > 0 {
		t.Errorf("got %q", r.beyond)
	}
}

func TestTheTableIsWritten(t *testing.T) {
	r := &result{
		attack: &Attack{What: "%s calls", Before: "1, 2"}, count: 1_000_000, sent: 2e6, attackerCPU: time.Second,
		server: footprint{memory: 64e6}, serverCPU: 3 * time.Second,
		before: phase{P99: time.Millisecond}, during: phase{P99: 20 * time.Millisecond},
	}
	file := filepath.Join(t.TempDir(), "table.csv")
	for range 2 {
		if err := writeCSV(file, []*result{r}); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	const want = "attack,attacker paid,server before,server now,memory,CPU,for a byte,honest p99,verdict\n" +
		`"1,000,000 calls","2 MB sent, 0 kB of memory, 1.0 s of CPU","1, 2","64 MB, 3.0 s of CPU",32x,3.0x,"32.0 B, 1500 ns",1.00 ms to 20 ms,bounded` + "\n"
	if string(got) != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// What the program holds from its start lies in the server's heap, too. The server is then collected
// later, and seems to need more memory.
func TestServerStartsWithASmallHeap(t *testing.T) {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	if m.HeapAlloc > 4<<20 {
		t.Errorf("%d MB of heap: an attack's messages must be made when it runs", m.HeapAlloc>>20)
	}
}
