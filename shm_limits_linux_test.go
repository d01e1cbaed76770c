package nearcall_test

import (
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
)

// wantFallback checks that what can be a socket is one, and that what cannot be is
// not, and says why.
func wantFallback(t *testing.T, reach way, why string) {
	t.Helper()
	if network, err := reach(t, "unix+shm"); network != "unix" || err != nil {
		t.Errorf("a unix target is reached over %q, %v", network, err)
	}
	_, err := reach(t, "shm")
	wantCode(t, err, codes.Unavailable)
	for _, hint := range []string{"shared memory cannot be used", why} {
		if err == nil || !strings.Contains(err.Error(), hint) {
			t.Errorf("%v does not mention %q", err, hint)
		}
	}
}

// wantUpgrade checks that connections are shared memory.
func wantUpgrade(t *testing.T, reach way) {
	t.Helper()
	for _, network := range overShm {
		if over, err := reach(t, network); over != "shm" || err != nil {
			t.Errorf("%s: a target is reached over %q, %v", network, over, err)
		}
	}
}

// As in a sandbox. Only a server makes memory.
func TestWhereNoMemoryMayBeMadeConnectionsStaySockets(t *testing.T) {
	for _, errno := range []syscall.Errno{unix.EPERM, unix.ENOSYS} {
		t.Run(errno.Error(), func(t *testing.T) {
			hold(t)
			r := newRemote(t, remoteRefuses+"="+strconv.Itoa(int(errno)))
			r.sides(func(t *testing.T, side string, reach way) {
				if side == "client" {
					wantUpgrade(t, reach)
					return
				}
				wantFallback(t, reach, "memfd_create: "+errno.Error())
			})
		})
	}
}

// TestWhereDescriptorsRunOutConnectionsStaySockets lets a process have one
// descriptor more at a time, until there are enough. So each step fails that needs
// some, on either side.
func TestWhereDescriptorsRunOutConnectionsStaySockets(t *testing.T) {
	hold(t)
	r := newRemote(t)
	steps := map[string][]string{
		"server": {
			"memfd_create: too many open files",
			"socketpair: too many open files",
		},
		"client": {
			"0 descriptors have come with the answer",
			"1 descriptors have come with the answer",
		},
	}
	r.sides(func(t *testing.T, side string, reach way) {
		said := ""
		for room := 1; ; room++ { // the first is for the socket
			lift := r.limitDescriptors(t, room)
			network, err := reach(t, "unix+shm")
			if network == "shm" && err == nil {
				wantUpgrade(t, reach)
				lift()
				break
			}
			if network != "unix" || err != nil || room > 20 {
				t.Fatalf("with room for %d descriptors a unix target is reached over %q, %v", room, network, err)
			}
			_, err = reach(t, "shm")
			lift()
			wantCode(t, err, codes.Unavailable)
			if err == nil || !strings.Contains(err.Error(), "shared memory cannot be used") {
				t.Errorf("with room for %d descriptors: %v", room, err)
			}
			said += fmt.Sprintln(err)
		}
		for _, hint := range steps[side] {
			if !strings.Contains(said, hint) {
				t.Errorf("no error mentions %q:\n%s", hint, said)
			}
		}
		wantUpgrade(t, reach)
	})
}

// A server that has no descriptor for a connection takes it when there is one again.
func TestACallWaitsForAServerThatIsOutOfDescriptors(t *testing.T) {
	hold(t)
	r := newRemote(t)
	for _, network := range overShm {
		lift := r.limitDescriptors(t, 0)
		type outcome struct {
			over string
			err  error
		}
		ended := make(chan outcome, 1)
		go func() {
			over, err := reach(t.Context(), r.at(network))
			ended <- outcome{over, err}
		}()
		select {
		case got := <-ended:
			t.Errorf("%s: a call ends: %+v", network, got)
		case <-time.After(100 * time.Millisecond):
		}
		lift()
		if got := <-ended; got.over != "shm" || got.err != nil {
			t.Errorf("%s: a call goes over %q, %v", network, got.over, got.err)
		}
		r.settles(t)
	}
}

func TestWhereMemoryRunsOutConnectionsStaySockets(t *testing.T) {
	hold(t)
	r := newRemote(t)
	r.sides(func(t *testing.T, side string, reach way) {
		wantUpgrade(t, reach)
		const slabs = 4 << 20 << (4 * (^uint(0) >> 63)) // of each side; the rest is less than 1 MiB
		for name, test := range map[string]struct {
			limit func(t *testing.T) (lift func())
			why   string
		}{
			"no file of the ring's size":         {func(t *testing.T) func() { return r.limit(t, unix.RLIMIT_FSIZE, 4096) }, "ftruncate: file too large"},
			"no file of the slabs' size":         {func(t *testing.T) func() { return r.limit(t, unix.RLIMIT_FSIZE, 1<<20) }, "ftruncate: file too large"},
			"not enough addresses for its slabs": {func(t *testing.T) func() { return r.limitMemory(t, slabs) }, "mmap: cannot allocate memory"},
		} {
			if side == "client" && strings.HasPrefix(name, "no file") {
				continue // it makes none
			}
			t.Run(name, func(t *testing.T) {
				wantFallback(t, func(t *testing.T, network string) (string, error) {
					defer test.limit(t)()
					return reach(t, network)
				}, test.why)
				wantUpgrade(t, reach)
			})
		}
	})
}
