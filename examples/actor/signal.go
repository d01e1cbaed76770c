package actor

import (
	"context"

	"github.com/nearcall/nearcall/loop"
)

// A signal is where a task waits until another task of its loop has changed what
// the first looks at. As with sync.Cond, whoever waits looks again afterwards; as the
// tasks of a loop take turns, nothing changes between the look and the wait. One
// task waits at a time. The zero value is ready.
type signal struct {
	resume func(struct{}, error) // of the task that waits; it may have left
}

// wait gives the loop away until somebody calls notify, or ctx is done, whose error
// it returns then.
func (s *signal) wait(ctx context.Context) error {
	_, err := loop.Await(ctx, func(resume func(struct{}, error)) { s.resume = resume })
	return err
}

func (s *signal) notify() {
	if s.resume != nil {
		s.resume(struct{}{}, nil)
		s.resume = nil
	}
}
