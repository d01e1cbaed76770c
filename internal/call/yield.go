package call

import "github.com/nearcall/nearcall/internal/wait"

// yielder has a task of a loop that sends or receives let others have their turns now
// and then, though it never has to wait: what a peer sends without a pause must not
// keep them from the loop.
type yielder struct{ messages uint8 }

// yieldEvery is how many messages a task sends or receives before others are let in.
const yieldEvery = 32

// beforeMessage precedes a message of w, nil for goroutines.
func (t *yielder) beforeMessage(w wait.Waiter) {
	if w == nil {
		return
	}
	if t.messages++; t.messages%yieldEvery == 0 {
		wait.Yield(w)
	}
}
