package inproc

import (
	"sync"
	"time"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wait"
)

// A pipe is one stream, with both directions and both ends in one allocation.
type pipe struct {
	up, down       queue // caller to callee, callee to caller
	caller, callee streamEnd
	deadline       time.Time // of the call; zero for none
	session        *session
	direction      *direction // of the call

	mu     sync.Mutex
	reason error // why it was aborted
	ended  bool  // the callee has sent its End

	reported sync.Once // the session learns that the call has ended
}

// A streamEnd is one side's end of the stream. It implements [link.TaskStream].
type streamEnd struct {
	pipe    *pipe
	in, out *queue
	waiter  wait.Waiter
	onAbort func(error) // guarded by pipe.mu
}

// newPipe returns a stream. up and down are its flow-control windows in bytes, from caller to
// callee and back. Each is at least 64 KiB. A single message may exceed its window.
func newPipe(up, down int) *pipe {
	p := &pipe{}
	p.up.handsOff = true
	p.up.window, p.down.window = max(up, defaultWindow), max(down, defaultWindow)
	p.caller = streamEnd{pipe: p, in: &p.down, out: &p.up}
	p.callee = streamEnd{pipe: p, in: &p.up, out: &p.down}
	return p
}

func (e *streamEnd) Send(f *link.Frame) error {
	if f.End == nil {
		return e.out.send(f, e.waiter)
	}
	// Capture the message first: the codec can be slow or fail, and until then the call must
	// not count as ended.
	if err := e.out.capture(f); err != nil {
		return err
	}
	if link.Passed(e.pipe.deadline) {
		copied, end := *f, *f.End
		end.Late, copied.End = true, &end
		f = &copied
	}
	// An end and an abort race: both sides see whichever comes first.
	e.pipe.mu.Lock()
	reason := e.pipe.reason
	e.pipe.ended = reason == nil
	e.pipe.mu.Unlock()
	if reason != nil {
		return reason
	}
	if err := e.out.send(f, e.waiter); err != nil {
		e.pipe.mu.Lock()
		e.pipe.ended = false
		e.pipe.mu.Unlock()
		return err
	}
	e.in.close(link.ErrEnded, link.ErrEnded)
	e.pipe.end()
	return nil
}

func (e *streamEnd) Recv(f *link.Frame) error { return e.in.recv(f, e.waiter) }

func (e *streamEnd) Abort(reason error) {
	p := e.pipe
	p.mu.Lock()
	if p.reason != nil || p.ended && e == &p.callee {
		p.mu.Unlock()
		return
	}
	p.reason = reason
	caller, callee := p.caller.onAbort, p.callee.onAbort
	p.mu.Unlock()
	if callee != nil {
		callee(reason)
	}
	p.up.close(reason, reason)
	p.down.close(reason, reason)
	if caller != nil {
		caller(reason)
	}
	p.end()
}

// end tells the session once that the call has ended.
func (p *pipe) end() {
	if p.session != nil {
		p.reported.Do(func() { p.direction.end(p.session) })
	}
}

func (e *streamEnd) OnAbort(f func(error)) {
	e.pipe.mu.Lock()
	reason := e.pipe.reason
	e.onAbort = f
	e.pipe.mu.Unlock()
	if reason != nil {
		f(reason)
	}
}

func (e *streamEnd) SetWaiter(w wait.Waiter) { e.waiter = w }
