package call

import "github.com/nearcall/nearcall/internal/wait"

// turns has a task of a loop that sends or receives let others have their turns now
// and then, though it never has to wait: what a peer sends without a pause must not
// keep them from the loop.
type turns struct{ messages uint8 }

// aTurn is how many messages a task sends or receives before others are let in.
const aTurn = 32

// pass precedes a message of w, nil for goroutines.
func (t *turns) pass(w wait.Waiter) {
	if w == nil {
		return
	}
	if t.messages++; t.messages%aTurn == 0 {
		wait.Yield(w)
	}
}
