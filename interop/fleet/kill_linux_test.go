package fleet

import (
	"errors"
	"os"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A disaster strikes a fleet under load.
type disaster struct {
	name   string
	strike func(f *fleet)
	mend   func(f *fleet) // may be nil; afterwards all servers are called again
	after  time.Duration  // how long the load goes on in between
	lost   bool           // calls may be lost with a connection, if they are not retried
	short  bool           // it is part of the short run
}

const victim = 3 // a machine with a server, which is nearcall's in a mixed fleet

var disasters = []disaster{
	{name: "SIGKILL", strike: func(f *fleet) { f.kill(f.servers[victim], syscall.SIGKILL) }, mend: func(f *fleet) { f.startServer(victim) }, after: 3 * time.Second, lost: true, short: true},
	{name: "SIGSTOP", strike: func(f *fleet) { f.signal(f.servers[victim], syscall.SIGSTOP) }, mend: func(f *fleet) { f.signal(f.servers[victim], syscall.SIGCONT) }, after: 14 * time.Second, lost: true},
	{name: "a partition", strike: func(f *fleet) { f.must(f.network.cut(victim)) }, mend: func(f *fleet) { f.must(f.network.mend(victim)) }, after: 14 * time.Second, lost: true},
	{name: "a slow link", strike: func(f *fleet) { f.must(f.network.slow(victim, "64kbit")) }, mend: func(f *fleet) { f.must(f.network.slow(victim, "")) }, after: 3 * time.Second},
	{name: "a rolling restart", strike: func(f *fleet) {
		for _, m := range servers {
			f.kill(f.servers[m], syscall.SIGTERM)
			f.startServer(m)
			time.Sleep(300 * time.Millisecond)
		}
	}, after: time.Second, short: true},
	{name: "a rolling change of kinds", strike: func(f *fleet) {
		for _, m := range servers {
			f.kill(f.servers[m], syscall.SIGTERM)
			if f.kinds[m] == "nearcall" {
				f.kinds[m] = "grpc-go"
			} else {
				f.kinds[m] = "nearcall"
			}
			f.startServer(m)
			time.Sleep(300 * time.Millisecond)
		}
	}, after: time.Second, short: true},
	{name: "SIGKILL of one etcd", strike: func(f *fleet) { f.kill(f.members[members[0]], syscall.SIGKILL) }, mend: func(f *fleet) { f.startMember(members[0]) }, after: 3 * time.Second},
	{name: "SIGKILL of all etcds", strike: func(f *fleet) {
		for _, m := range members {
			f.kill(f.members[m], syscall.SIGKILL)
		}
	}, mend: func(f *fleet) {
		for _, m := range members {
			f.startMember(m)
		}
	}, after: 5 * time.Second, short: true},
}

func (f *fleet) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// With a retry policy no unary call fails. Without one only calls fail that were on a connection that
// has died: one for each caller at most.
func TestFleet(t *testing.T) {
	if wanted == "" {
		t.Skip("make fleet runs it")
	}
	fleets := map[string][]string{"mixed": {"nearcall", "grpc-go"}}
	if wanted == "full" {
		fleets["nearcall"], fleets["grpc-go"] = []string{"nearcall"}, []string{"grpc-go"}
	}
	for name, kinds := range fleets {
		t.Run(name, func(t *testing.T) {
			f := start(t, kinds...)
			for _, d := range disasters {
				if wanted == "short" && !d.short {
					continue
				}
				t.Run(d.name, func(t *testing.T) { f.survive(t, d) })
			}
		})
	}
}

// survive runs a disaster for each client, without and with retries.
func (f *fleet) survive(t *testing.T, d disaster) {
	f.t = t
	for _, retry := range []bool{false, true} {
		for _, kind := range []string{"grpc-go", "nearcall"} {
			if wanted == "short" && kind == "grpc-go" {
				continue
			}
			files := descriptors(t, os.Getpid())
			l := f.begin(kind, retry)
			time.Sleep(500 * time.Millisecond)
			at := time.Now()
			d.strike(f)
			time.Sleep(d.after)
			if d.mend != nil {
				d.mend(f)
			}
			l.reach(t, len(servers))
			all := l.end(t)
			t.Logf("%s, retries %v: p99 in the second after %v; %v", kind, retry, all.p99(at), all)
			if kind == "grpc-go" { // the oracle
				continue
			}
			failed := all.failed()
			allowed := 0
			switch {
			case d.lost && retry:
				allowed = streamers // a stream that has received something cannot be made again
			case d.lost:
				allowed = callers
			}
			if len(failed) > allowed {
				t.Errorf("%d calls have failed, of which %d may", len(failed), allowed)
			}
			for _, o := range failed {
				if status.Code(errors.Unwrap(o.err)) != codes.Unavailable && status.Code(o.err) != codes.Unavailable {
					t.Errorf("a call has ended with %v, want Unavailable", o.err)
				}
			}
			for n := time.Now(); descriptors(t, os.Getpid()) > files; time.Sleep(10 * time.Millisecond) {
				if time.Since(n) > 5*time.Second {
					t.Errorf("the client has left %d descriptors open", descriptors(t, os.Getpid())-files)
					break
				}
			}
		}
	}
	for m, p := range f.servers {
		if n := descriptors(t, p.cmd.Process.Pid); n > 100 {
			t.Errorf("server %d has %d open files", m, n)
		}
	}
}
