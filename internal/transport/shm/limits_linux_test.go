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
	for why, l := range map[string]layout{"fallocate": {ring: -controlIs, slabs: slabsSize}, "mmap": {ring: ringSize}} {
		leavesNothing(t, func() {
			f, err := newFile(l)
			if err != nil {
				t.Fatal(err)
			}
			defer f.release()
			if _, _, err := newSides(f, false, plenty); err == nil || !strings.HasPrefix(err.Error(), why) {
				t.Errorf("a file of %+v: %v", l, err)
			}
		})
	}
}
