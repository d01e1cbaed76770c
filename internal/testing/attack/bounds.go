//go:build linux

package attack

import (
	"fmt"
	"time"
)

// The bounds that no attack may exceed. A server may use ten times what the attacker paid,
// in memory and in processor time. What the attacker pays in memory is the bytes that it
// sends and the shared memory that it has touched. Its own private memory does not count,
// as another attacker could use less. Amounts below the floors do no harm and are never
// judged.
const (
	timesMemory = 10
	timesCPU    = 10

	memoryFloor = 32 << 20
	busyFloor   = 128 << 20 // without -full: garbage waits for a processor
	cpuFloor    = 100 * time.Millisecond

	// After an attacker has gone, at most memoryFloor may stay allocated, or after the
	// attack's release if it stays connected. Go's runtime also keeps its bookkeeping for a
	// heap and for goroutines that are gone: one part in partKept of the peak is allowed
	// for it.
	partKept = 16

	// The server may have several descriptors for each of the attacker's, and threads for
	// system calls in progress.
	timesDescriptors = 4
	descriptorFloor  = 64
	threadFloor      = 64

	// The honest client's calls must not fail. In the full form their 99th percentile may
	// be ten times as long as before.
	timesLatency = 10
	latencyFloor = 50 * time.Millisecond
)

// tries is how many times an attack is made if it exceeds nothing but time bounds. Other processes
// on the machine can only add to the time that a server seems to need, so one try within the bounds
// is enough.
const tries = 3

// judge records which bounds the attack exceeded. Times are judged only if full is set: otherwise the machine may be
// busy with other tests.
func judge(r *result, full bool) {
	r.judgeCost(full)
	if r.died != "" {
		r.say("%s", r.died)
		return
	}
	r.judgeServing(full)
}

func (r *result) say(format string, args ...any) {
	r.beyond = append(r.beyond, fmt.Sprintf(format, args...))
}

// sayTime records that the attack exceeded a time bound.
func (r *result) sayTime(format string, args ...any) {
	r.say(format, args...)
	r.timed++
}

// again reports whether another try may show that the attack is bounded.
func (r *result) again() bool { return len(r.beyond) > 0 && r.timed == len(r.beyond) }

// excused records a bound that the attack exceeded within its excuse.
func (r *result) excused(format string, args ...any) {
	r.known = append(r.known, fmt.Sprintf(format, args...))
}

// judgeCost judges what the attack cost the server.
func (r *result) judgeCost(full bool) {
	var known Excuse
	if r.attack.Known != nil {
		known = *r.attack.Known
	}
	floor := int64(memoryFloor)
	if !full {
		floor = busyFloor
	}
	if x := r.memoryRatio(); r.server.memory > floor && x > timesMemory {
		say := r.say
		if r.server.memory <= known.Memory+known.Each*int64(r.count) {
			say = r.excused
		}
		say("memory %.0fx", x)
	}
	if x := r.cpuRatio(); full && !r.attack.asked && r.serverCPU > cpuFloor && x > timesCPU {
		say := r.sayTime
		if x <= known.CPU {
			say = r.excused
		}
		say("CPU %.0fx", x)
	}
	if full && r.busy && r.cpuRatio() > 1 {
		r.sayTime("busy at the end")
	}
	if n := r.server.descriptors; n > max(descriptorFloor, timesDescriptors*r.attacker.descriptors) {
		r.say("%d descriptors", n)
	}
	if n := r.server.threads; n > threadFloor {
		r.say("%d threads", n)
	}
}

// judgeServing judges how the server serves during and after the attack.
func (r *result) judgeServing(full bool) {
	if r.attack.release > 0 && r.held > memoryFloor && full {
		r.say("%s held for more than %s", size(r.held), r.attack.release)
	}
	if r.kept > r.mayKeep() {
		r.say("%s kept", size(r.kept))
	}
	if r.stuck {
		r.say("Stop does not return")
	}
	if d := r.during; d.Failed > 0 {
		r.say("%d of %d honest calls failed: %s", d.Failed, d.Calls, d.Failure)
	} else if d.Calls == 0 {
		r.say("no honest call ends")
	}
	if n := r.newcomer; n.Failed > 0 || n.Calls == 0 {
		if r.attack.Known != nil && r.attack.Known.Newcomers {
			r.excused("new clients fail")
		} else {
			r.say("a new client fails: %s", n.Failure)
		}
	}
	if most := max(latencyFloor, timesLatency*r.before.P99); full && !r.attack.asked && r.during.P99 > most {
		r.sayTime("p99 of %s", shortly(r.during.P99))
	}
}

// mayKeep returns how many bytes may stay allocated after the attack.
func (r *result) mayKeep() int64 { return memoryFloor + r.server.memory/partKept }

// paid returns what the attack cost the attacker in memory, in bytes.
func (r *result) paid() int64 { return r.sent + r.attacker.touched }

func (r *result) memoryRatio() float64 {
	return float64(r.server.memory) / float64(max(r.paid(), 1))
}

func (r *result) cpuRatio() float64 {
	return float64(r.serverCPU) / float64(max(r.attackerCPU, time.Microsecond))
}
