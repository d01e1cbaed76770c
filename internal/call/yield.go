package call

import "github.com/nearcall/nearcall/internal/wait"

// A yielder makes a loop's task yield to other tasks now and then while it sends or receives. A
// task whose peer is fast never has to wait, and must not starve the others.
type yielder struct{ messages uint8 }

// yieldEvery is the number of messages after which a task yields.
const yieldEvery = 32

// beforeMessage is called before each message is sent or received. w is the task's loop,
// nil for goroutines.
func (t *yielder) beforeMessage(w wait.Waiter) {
	if w == nil {
		return
	}
	if t.messages++; t.messages%yieldEvery == 0 {
		wait.Yield(w)
	}
}
