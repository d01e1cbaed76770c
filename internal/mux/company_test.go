package mux

import "testing"

func TestLargeMessagesGiveWayWhileOtherCallsComeBy(t *testing.T) {
	c := company{begun: 1} // as at the beginning of its stream
	if c.shouldYield(largeMessage, 1) {
		t.Error("it gives way though it is alone")
	}
	if c.shouldYield(largeMessage-1, 2) {
		t.Error("it gives way after a small message")
	}
	for range 2 {
		if !c.shouldYield(largeMessage, 2) {
			t.Error("it does not give way beside another call")
		}
	}
	n := 0
	for c.shouldYield(largeMessage, 3) {
		n++
	}
	if n != companyLasts {
		t.Errorf("it gives way for %d messages after the last call, want %d", n, companyLasts)
	}
	if !c.shouldYield(10*largeMessage, 4) {
		t.Error("it does not notice the next call")
	}
}
