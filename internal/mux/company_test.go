package mux

import "testing"

func TestLargeMessagesGiveWayWhileOtherCallsComeBy(t *testing.T) {
	c := company{begun: 1} // as its stream's own beginning left it
	if c.gives(aLarge, 1) {
		t.Error("it gives way though it is alone")
	}
	if c.gives(aLarge-1, 2) {
		t.Error("it gives way after a small message")
	}
	for range 2 {
		if !c.gives(aLarge, 2) {
			t.Error("it does not give way beside another call")
		}
	}
	n := 0
	for c.gives(aLarge, 3) {
		n++
	}
	if n != companyLasts {
		t.Errorf("it gives way for %d messages after the last call, want %d", n, companyLasts)
	}
	if !c.gives(10*aLarge, 4) {
		t.Error("it does not notice the next call")
	}
}
