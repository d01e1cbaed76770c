package actor

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// lineLimit is the greatest number of messages that wait for one client. It must be enough
// for a client that reads, but is delayed by other work on its machine.
const lineLimit = 16 << 10

// A line is the queue of messages to one client. Tasks of the loop put messages on it without
// waiting; one task sends them.
//
// Invariants:
//   - A line that has ended is closed and empty.
//   - err does not change after the line is closed, except if the line ends before all
//     messages were sent: then err says why.
type line[T any] struct {
	limit  int
	queue  []T
	closed bool  // no message can be put
	ended  bool  // no message will be sent
	err    error // the error that the stream ends with

	filled, drained, over signal
}

// put adds m. If the line is full, put ends it and returns false.
func (l *line[T]) put(m T) bool {
	switch {
	case l.closed:
	case len(l.queue) == l.limit:
		l.abort(status.Errorf(codes.ResourceExhausted, "%d messages wait to be received: read faster", l.limit))
		return false
	default:
		l.queue = append(l.queue, m)
		l.filled.notify()
	}
	return true
}

// close ends the line with err after its messages were sent.
func (l *line[T]) close(err error) {
	if !l.closed {
		l.closed, l.err = true, err
		l.filled.notify()
	}
}

// abort ends the line with err at once, and with it the call. Tasks that wait for the line to
// fill or drain wait with the call's context, so their waits end, too.
func (l *line[T]) abort(err error) {
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

// deliver sends the messages that are put on the line, until the line ends.
func (l *line[T]) deliver(ctx context.Context, send func(T) error) {
	for {
		for len(l.queue) == 0 && !l.closed {
			if l.filled.wait(ctx) != nil {
				return // the handler's wait ends likewise
			}
		}
		if len(l.queue) == 0 {
			l.abort(l.err) // does nothing if the line has ended already
			return
		}
		m := l.queue[0]
		clear(l.queue[:1])
		l.queue = l.queue[1:]
		l.drained.notify()
		if err := send(m); err != nil {
			l.abort(err)
			return
		}
	}
}

// wait waits until the line or the call ends. In both cases the line has ended afterwards.
// wait returns the error that the call must return.
func (l *line[T]) wait(ctx context.Context) error {
	for !l.ended {
		if err := l.over.wait(ctx); err != nil {
			l.abort(status.FromContextError(err).Err())
		}
	}
	return l.err
}
