package mux

import "testing"

func TestLargeMessagesYieldToOtherCalls(t *testing.T) {
	y := yielding{begun: 1} // as at the beginning of its stream
	if y.shouldYield(largeMessage, 1) {
		t.Error("it yields though it is alone")
	}
	if y.shouldYield(largeMessage-1, 2) {
		t.Error("it yields after a small message")
	}
	for range 2 {
		if !y.shouldYield(largeMessage, 2) {
			t.Error("it does not yield beside another call")
		}
	}
	n := 0
	for y.shouldYield(largeMessage, 3) {
		n++
	}
	if n != yieldsAfterCall {
		t.Errorf("it yields for %d messages after the last call, want %d", n, yieldsAfterCall)
	}
	if !y.shouldYield(10*largeMessage, 4) {
		t.Error("it does not notice the next call")
	}
}
