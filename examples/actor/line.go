package actor

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// lineLimit is how many messages wait for one client at most. It has to last for as
// long as a client that does read may be kept from it by what else its machine does.
const lineLimit = 16 << 10

// A line is what is on its way to one client. Tasks of the loop put messages on it
// and never wait; one task sends them.
//
// Invariants:
//   - A line that has ended is closed and empty.
//   - err does not change once the line is closed, but for one that ends before
//     all was sent: that says why.
type line[T any] struct {
	limit  int
	queue  []T
	closed bool  // nothing is put any more
	ended  bool  // nothing is sent any more
	err    error // what the stream ends with

	filled, drained, over signal
}

// put adds m. A line that is full ends, which put reports with false.
func (l *line[T]) put(m T) bool {
	switch {
	case l.closed:
	case len(l.queue) == l.limit:
		l.end(status.Errorf(codes.ResourceExhausted, "%d messages wait to be received: read faster", l.limit))
		return false
	default:
		l.queue = append(l.queue, m)
		l.filled.notify()
	}
	return true
}

// close ends the line with err when what it holds was sent.
func (l *line[T]) close(err error) {
	if !l.closed {
		l.closed, l.err = true, err
		l.filled.notify()
	}
}

// end ends the line with err at once. The call ends with it, and so do tasks that wait
// for the line to fill up or to drain: they wait with the call's context.
func (l *line[T]) end(err error) {
	if l.ended {
		return
	}
	l.closed, l.ended, l.err, l.queue = true, true, err, nil
	l.over.notify()
}

// room waits while the line is more than half full.
func (l *line[T]) room(ctx context.Context) error {
	for len(l.queue) > l.limit/2 {
		if err := l.drained.wait(ctx); err != nil {
			return err
		}
	}
	return nil
}

// deliver sends what is put, until the line ends.
func (l *line[T]) deliver(ctx context.Context, send func(T) error) {
	for {
		for len(l.queue) == 0 && !l.closed {
			if l.filled.wait(ctx) != nil {
				return // the handler sees the same
			}
		}
		if len(l.queue) == 0 {
			l.end(l.err) // or it has ended already
			return
		}
		m := l.queue[0]
		clear(l.queue[:1])
		l.queue = l.queue[1:]
		l.drained.notify()
		if err := send(m); err != nil {
			l.end(err)
			return
		}
	}
}

// wait waits for the line's end, or that of the call. Either way it has ended
// afterwards, and what it returns is the call's.
func (l *line[T]) wait(ctx context.Context) error {
	for !l.ended {
		if err := l.over.wait(ctx); err != nil {
			l.end(status.FromContextError(err).Err())
		}
	}
	return l.err
}
