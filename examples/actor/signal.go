package actor

import (
	"context"

	"github.com/nearcall/nearcall/loop"
)

// A signal lets a task wait until another task of its loop has changed some state. As with
// sync.Cond, the waiter checks the state again afterwards. Because only one task runs at a
// time, nothing changes between the check and the wait. One task can wait at a time. The
// zero value is ready.
type signal struct {
	resume func(struct{}, error) // resumes the waiting task; does nothing if its wait has ended
}

// wait lets other tasks run until notify is called. It returns ctx's error if ctx is done
// first.
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
