package chaos

import (
	"context"
	"time"

	"github.com/nearcall/nearcall/loop"
)

// A book records the calls of a service on a loop. It has no lock, so the race detector
// reports a loop that runs tasks concurrently. All methods except close must be called
// by tasks of the loop. Those without a result do nothing on a nil book, which a
// service on no loop has.
type book struct {
	chaos    *chaos
	loop     *loop.Loop
	endLoop  func(context.Context) error
	inside   int            // tasks that write now
	steps    int            // by all calls
	open     map[uint64]int // steps of running calls, by tag
	archived int            // steps of calls that have ended
	strays   int            // tasks that outlive their handler
}

func openBook(c *chaos) *book {
	l, end := c.On.New()
	return &book{chaos: c, loop: l, endLoop: end, open: make(map[uint64]int)}
}

// write changes the book with f, and reports concurrent writes.
func (b *book) write(f func()) {
	if b == nil {
		return
	}
	if b.inside++; b.inside != 1 {
		b.chaos.errorf("%d tasks of a loop run at a time", b.inside)
	}
	f()
	b.inside--
}

func (b *book) begin(tag uint64) {
	b.write(func() {
		if _, twice := b.open[tag]; twice {
			b.chaos.errorf("call %x has two handlers", tag)
		}
		b.open[tag] = 0
	})
}

func (b *book) step(tag uint64) {
	b.write(func() {
		b.steps++
		b.open[tag]++
	})
}

func (b *book) end(tag uint64) {
	b.write(func() {
		b.archived += b.open[tag]
		delete(b.open, tag)
	})
}

// wait waits until ctx is done.
func (b *book) wait(ctx context.Context) error {
	_, err := loop.Await(ctx, func(func(struct{}, error)) {})
	if err != ctx.Err() {
		b.chaos.errorf("a task waits for the end of its context, which is %v, and gets %v", ctx.Err(), err)
	}
	return err
}

// task starts another task, which records a step of the call, and waits for it.
func (b *book) task(ctx context.Context, tag uint64) {
	over := false
	_, err := loop.Await(ctx, func(resume func(struct{}, error)) {
		if err := b.loop.Go(func(own context.Context) {
			_ = loop.Sleep(own, 0)
			if _, running := b.open[tag]; running {
				b.step(tag)
			}
			over = true
			resume(struct{}{}, nil)
		}); err != nil {
			resume(struct{}{}, err)
		}
	})
	switch {
	case err == nil && !over:
		b.chaos.errorf("a task goes on before what it waits for")
	case err != nil && err != ctx.Err():
		b.chaos.errorf("a task starts another: %v", err)
	}
}

// stray starts a task that uses a's call after its handler has returned.
func (b *book) stray(a *actor, goOn func()) (returned func()) {
	over, wake := false, func(struct{}, error) {}
	if err := b.loop.Go(func(own context.Context) {
		b.strays++
		defer func() { b.strays-- }()
		_, _ = loop.Await(own, func(resume func(struct{}, error)) {
			wake = resume
			if over {
				resume(struct{}{}, nil)
			}
		})
		_ = b.wait(a.ctx)
		goOn()
	}); err != nil {
		b.chaos.errorf("a handler starts a task: %v", err)
	}
	return func() {
		b.end(a.tag)
		over = true
		wake(struct{}{}, nil)
	}
}

// close closes the loop, after its server was stopped, and checks that the totals
// match.
func (b *book) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := b.endLoop(ctx); err != nil {
		b.chaos.errorf("the loop: %v", err)
		return // tasks could still be writing
	}
	if len(b.open) != 0 || b.inside != 0 || b.strays != 0 || b.archived != b.steps {
		b.chaos.errorf("the book does not add up: %d calls run, %d write, %d strays are left, and of %d steps %d belong to calls that have ended",
			len(b.open), b.inside, b.strays, b.steps, b.archived)
	}
}
