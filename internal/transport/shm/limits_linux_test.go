package shm

import (
	"strings"
	"testing"
)

// Neither size can be had, the second where it is mapped.
func TestMemoryThatCannotBeHadLeavesNothing(t *testing.T) {
	for size, why := range map[int]string{-1: "ftruncate", 0: "mmap"} {
		leavesNothing(t, func() {
			m, fd, err := newMemory(size)
			if m != nil || fd != -1 || err == nil || !strings.HasPrefix(err.Error(), why) {
				t.Errorf("%d bytes: %d are there, with the descriptor %d, %v", size, len(m), fd, err)
			}
		})
	}
}
