// Package waits decides which goroutine of a session reads, which one writes, and which one is
// woken. Its rules are pure functions: they use no connection, goroutine or lock. A method changes
// a small value and says what the session has to do. Package mux calls them with the session's lock
// held, and explorer_test.go calls them with small models of a connection and of goroutines, in
// every order of steps.
package waits

import "sync/atomic"

// Roles say which goroutine reads the connection and which one writes it.
//
// One goroutine at a time reads, for all calls: either the read loop, a goroutine of the session,
// or the reading caller, which waits for the peer. While the read loop runs a handler, no goroutine
// reads. The goroutine that holds the write lock writes for all calls. That goroutine has queued
// something, or it is the writer, a goroutine of the session that may block.
//
// Invariants:
//   - While a goroutine waits for the peer, another one reads or was woken to read.
//   - If something is queued that can be written, one of four things is true: a goroutine holds the
//     write lock, the writer was woken to take it, the goroutine that has the lock is about to take
//     it or wake the writer, or BatchReplies is set.
//   - While BatchReplies is set, a read loop runs handlers or is about to, and writes after the
//     last one.
//   - Other goroutines wait on a Parker, but the reading caller waits in a read. So StopCaller
//     tells the reading caller to stop, and interrupts that read. The reading caller undoes the
//     interruption before it leaves, so that the next reader is not interrupted.
type Roles struct {
	Reader    Reader
	WriteLock WriteLock

	Waiting      int  // goroutines, other than the reading caller, that wait for the peer and were not woken yet
	Crowd        int  // for how many more reads the read loop stays; see CrowdLasts
	Ended        bool // the session has ended, or will because it cannot be written: only the read loop reads
	BatchReplies bool // nothing is written until the read loop has run its handlers

	// State of the reading caller.
	mustStop    uint32 // atomic, because MustStop needs no lock
	Parked      bool   // it is in a read that can be interrupted
	Interrupted bool   // this read was interrupted
}

// A Reader is the role of the goroutine that reads.
type Reader byte

const (
	Nobody   Reader = iota
	ReadLoop        // the read loop reads, or was woken to read
	Caller          // a caller reads
	Handler         // the read loop runs a handler
)

// A WriteLock is the right to write.
type WriteLock byte

const (
	Free       WriteLock = iota
	Called               // the writer was woken to take it; another goroutine may take it first
	Taken                // a goroutine writes
	HandedOver           // it is the writer's, with a batch that is not fully written
)

// A Task is a set of things that the session has to do.
type Task byte

const (
	WakeReadLoop   Task = 1 << iota
	StartReadLoop       // start a new read loop, while the old one runs a handler
	StartIdleTimer      // WakeReadLoop follows if no goroutine reads for a while
	InterruptRead       // interrupt the reading caller's read
	WakeWriter
)

// CrowdLasts is the number of reads for which the read loop stays after several goroutines have
// waited at the same time.
const CrowdLasts = 64

// NeedReader makes sure that a goroutine reads. A goroutine that is about to wait for the peer, or
// that ends the session, calls it.
func (r *Roles) NeedReader() Task {
	switch r.Reader {
	case Nobody:
		r.Reader = ReadLoop
		return WakeReadLoop
	case Handler:
		r.Reader = ReadLoop
		return StartReadLoop
	}
	return 0
}

// Wait is called by a goroutine that is about to park until the peer sends something. A call of
// Woken must follow.
func (r *Roles) Wait() Task {
	r.Waiting++
	return r.NeedReader()
}

// Woken says that a goroutine that had called Wait was woken, or stopped waiting because its
// context has ended.
func (r *Roles) Woken() { r.Waiting-- }

// CallerMayRead reports whether a caller that has to wait may read instead. Such a caller reads its
// own reply, because no other goroutine waits for the peer. Otherwise the connection would already
// have a reader.
func (r *Roles) CallerMayRead() bool { return r.Reader == Nobody }

// ReadAsCaller makes a caller the reading caller.
func (r *Roles) ReadAsCaller() {
	r.Reader = Caller
	atomic.StoreUint32(&r.mustStop, 0)
}

// MustStop reports whether the reading caller was told to stop. It needs no lock.
func (r *Roles) MustStop() bool { return atomic.LoadUint32(&r.mustStop) != 0 }

// StopCaller tells the reading caller to stop, because its wait is over.
func (r *Roles) StopCaller() Task {
	atomic.StoreUint32(&r.mustStop, 1)
	return r.Interrupt()
}

// Interrupt interrupts the reading caller's read, if it is parked there.
func (r *Roles) Interrupt() Task {
	if !r.Parked || r.Interrupted {
		return 0
	}
	r.Interrupted = true
	return InterruptRead
}

// Park is called by the reading caller before it parks in a read, and Unpark after it. If Unpark
// returns true, the read was interrupted, and the reading caller must undo the interruption.
func (r *Roles) Park() { r.Parked = true }

func (r *Roles) Unpark() (interrupted bool) {
	interrupted = r.Interrupted
	r.Parked, r.Interrupted = false, false
	return interrupted
}

// Leave ends the reading caller's role. failed says that the connection cannot be read any more,
// which the read loop has to deal with.
func (r *Roles) Leave(failed bool) Task {
	if r.Waiting > 0 {
		r.Crowd = CrowdLasts
	}
	if r.Waiting > 0 || failed || r.Ended {
		r.Reader = ReadLoop
		return WakeReadLoop
	}
	r.Reader = Nobody
	return StartIdleTimer
}

// Retire lets the read loop leave reading to callers, if no caller waits. If ok is true, the
// read loop parks until Reader is ReadLoop again.
func (r *Roles) Retire() (do Task, ok bool) {
	switch {
	case r.Waiting > 0 || r.Ended:
		return 0, false
	case r.Crowd > 0:
		r.Crowd--
		return 0, false
	}
	r.Reader = Nobody
	return StartIdleTimer, true
}

// Idle is called when the idle timer fires.
func (r *Roles) Idle() Task {
	if r.Reader != Nobody {
		return 0
	}
	return r.NeedReader()
}

// MayRunHandler reports whether the read loop may run a handler.
func (r *Roles) MayRunHandler() bool { return r.Waiting == 0 && !r.Ended }

// RunHandler makes the read loop run a handler. more says that other handlers follow. The replies
// of all of them are then written together.
func (r *Roles) RunHandler(more bool) {
	r.Reader = Handler
	r.BatchReplies = r.BatchReplies || more
}

// A read loop calls Returned after its handler has returned, if it is still the read loop. If
// another goroutine has become the read loop, this goroutine ends instead.
func (r *Roles) Returned() { r.Reader = ReadLoop }

// CallWriter wakes the writer to write queued frames, or to end the session. lost says that nothing
// more can be written.
func (r *Roles) CallWriter(lost bool) Task {
	if r.WriteLock == Free {
		r.WriteLock = Called
	}
	if r.WriteLock == Taken && !lost {
		return 0
	}
	return WakeWriter
}

// TakeWriteLock gives the write lock to a goroutine that has queued something. If ok is false, that
// goroutine leaves writing to another one. mayWrite says that it can write without blocking;
// otherwise the writer writes.
func (r *Roles) TakeWriteLock(mayWrite bool) (do Task, ok bool) {
	switch {
	case r.BatchReplies || r.WriteLock >= Taken:
		return 0, false
	case !mayWrite || r.Ended:
		return r.CallWriter(false), false
	}
	r.WriteLock = Taken
	return 0, true
}

// ReleaseWriteLock releases the write lock when nothing is left to write. If left is set, it passes
// the rest of a batch to the writer.
func (r *Roles) ReleaseWriteLock(left, lost bool) Task {
	r.WriteLock = Free
	if left {
		r.WriteLock = HandedOver
	}
	if left || lost {
		return r.CallWriter(lost)
	}
	return 0
}

// WriterMayWrite reports whether the writer has something to do. If not, it parks.
func (r *Roles) WriterMayWrite() bool { return r.WriteLock == Called || r.WriteLock == HandedOver }
