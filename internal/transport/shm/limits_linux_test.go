package shm

import (
	"strings"
	"testing"
)

// The file cannot be created, its pages cannot be allocated, or it cannot be mapped.
func TestMemoryThatCannotBeHadLeavesNothing(t *testing.T) {
	leavesNothing(t, func() {
		f, err := newFile(layout{ring: ringSize, slabs: -1 << 30})
		if f != nil || err == nil || !strings.HasPrefix(err.Error(), "ftruncate") {
			t.Errorf("a file that ends before it begins: %v", err)
		}
	})
	for why, l := range map[string]layout{"mmap": {ring: ringSize}, "its pages cannot be allocated": {ring: 4 * ringSize, slabs: slabsSize}} {
		leavesNothing(t, func() {
			f, err := newFile(layout{ring: min(l.ring, ringSize), slabs: min(l.slabs, partAlign)})
			if err != nil {
				t.Fatal(err)
			}
			defer f.release()
			f.layout = l
			if _, _, err := newSides(f, false, plenty); err == nil || !strings.HasPrefix(err.Error(), why) {
				t.Errorf("a file of %+v: %v", l, err)
			}
		})
	}
}
