package mux

import (
	"context"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/nearcall/nearcall/internal/wait"
)

// Before a goroutine that waits for the peer parks, it spins: it polls the connection for a short
// time. A peer on another processor often answers within microseconds, and then neither side needs
// a wake-up.

// spinning counts the goroutines of this process that spin. At most GOMAXPROCS-1 of them, but at
// least one, may spin at a time, so that others can run.
var spinning atomic.Int32

func startSpinning() bool {
	if spinning.Add(1) <= max(int32(runtime.GOMAXPROCS(0))-1, 1) {
		return true
	}
	spinning.Add(-1)
	return false
}

// spin polls the connection for up to maxSpin, or until the caller is woken, and handles what it
// reads. It reports whether there was input. Called with mu held; mu is released in between.
func (s *Session) spin(ctx context.Context, asCaller bool) (got bool, err error) {
	s.mu.Unlock()
	begun := time.Now()
	now := begun
	for i := 1; ; i++ {
		n, err := s.raw.TryRead(s.readSpace())
		if n > 0 || err != nil {
			spinning.Add(-1)
			s.reading.spinBudget.spun(true)
			return true, s.handleRead(n, err, now)
		}
		if asCaller && (s.roles.MustStop() || wait.Err(ctx) != nil) {
			break
		}
		if now = time.Now(); now.Sub(begun) > maxSpin {
			s.reading.spinBudget.spun(false)
			break
		}
		if !asCaller || i%8 == 0 { // let handlers that the read loop has just started run
			runtime.Gosched()
		}
		if onlyCPU { // a local peer needs this processor to answer
			yield()
		}
	}
	spinning.Add(-1)
	s.mu.Lock()
	return false, nil
}

// onlyCPU is true if this process has a single processor.
var onlyCPU = runtime.NumCPU() == 1

// spinBudget decides whether a goroutine spins before it parks. Spinning is wasted if the peer
// takes longer than a spin, or needs the processor of the spinning goroutine. A successful spin
// earns budget and a failed one spends it, so wasted spinning soon stops. Short waits of a parked
// goroutine earn a little, so that spinning is tried again when it may pay off.
type spinBudget struct{ earned int }

const (
	maxSpin = 50 * time.Microsecond

	spinCost  = 16 // lost by a failed spin, earned by a successful one
	maxEarned = 64 * spinCost

	// shortWait is the longest wait in Read for which spinning might have paid off.
	shortWait = 2 * maxSpin
)

func (p *spinBudget) allows() bool { return p.earned >= spinCost }

// spun records whether a spin was successful.
func (p *spinBudget) spun(ok bool) {
	if ok {
		p.earned = min(p.earned+spinCost, maxEarned)
	} else {
		p.earned -= spinCost
	}
}

// parked records how long a goroutine that did not spin was parked.
func (p *spinBudget) parked(d time.Duration) {
	if d < shortWait {
		p.earned = min(p.earned+1, maxEarned)
	}
}

// silentCalls counts the open calls that have received nothing for a long time, such as streams
// that wait for an event. Readers leave them out when they decide whether to spin.
//
// Guarded by the session's mu.
type silentCalls struct {
	reads uint64 // reads that returned data
	at    uint64 // the value of reads at the last count
	calls int    // silent calls at the last count
}

// silentAfter returns how many reads without data make a call silent. The session counts silent
// calls once every silentAfter reads. The result is at least the number of calls, so counting them
// all costs each read at most one call.
func silentAfter(calls int) uint64 { return max(256, uint64(calls)) }

// activeLocked returns the number of open calls that are not silent.
func (s *Session) activeLocked() int {
	n := len(s.streams)
	if n <= fewCalls {
		return n
	}
	q, after := &s.silent, silentAfter(n)
	if q.reads-q.at >= after {
		q.at, q.calls = q.reads, 0
		for _, st := range s.streams {
			if q.reads-st.heard >= after {
				q.calls++
			}
		}
	}
	return max(n-q.calls, 0)
}
