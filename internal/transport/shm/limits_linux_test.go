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
	leavesNothing(t, func() {
		f, err := newFile(layout{ring: ringSize})
		if err != nil {
			t.Fatal(err)
		}
		defer f.release()
		if _, _, err := newSides(f, false, plenty); err == nil || !strings.HasPrefix(err.Error(), "mmap") {
			t.Errorf("a file without slabs: %v", err)
		}
	})
	leavesNothing(t, func() {
		f, err := newFile(layout{ring: ringSize, slabs: partAlign})
		if err != nil {
			t.Fatal(err)
		}
		defer f.release()
		f.layout = ours
		f.layout.ring *= 4
		data, space := sockets(t)
		defer data.Close()
		c, err := newConn(f, false, plenty, data, space)
		if err != nil {
			t.Fatal(err)
		}
		defer c.closeAfterError()
		if err := c.allocateFirst(false); err == nil || !strings.HasPrefix(err.Error(), "its pages cannot be allocated") {
			t.Errorf("a file that is too short: %v", err)
		}
	})
}
