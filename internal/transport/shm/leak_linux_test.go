package shm

import (
	"os"
	"strconv"
	"testing"

	"github.com/nearcall/nearcall/internal/testing/leak"
)

// TestNothingIsLeftOfManyConnections opens and closes 1,000 connections, or as many as
// NEARCALL_SHM_CYCLES says.
func TestNothingIsLeftOfManyConnections(t *testing.T) {
	cycles := 1000
	if s := os.Getenv("NEARCALL_SHM_CYCLES"); s != "" {
		var err error
		if cycles, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	before := len(leak.Find())
	leavesNothing(t, func() {
		for i := range cycles {
			a, b := sockets(t)
			client, server := agree(t, a, b)
			first, second := client, server
			if i&1 == 1 {
				first, second = second, first
			}
			if _, err := first.Write([]byte("x")); err != nil {
				t.Fatal(err)
			}
			if i&2 == 2 {
				if _, err := second.Read(make([]byte, 1)); err != nil {
					t.Fatal(err)
				}
			}
			done := reads(first)
			if i&4 == 4 {
				sleeps(t, first)
			}
			_ = second.Close()
			if got := soon(t, "Read", done); got.err == nil {
				t.Fatal(got)
			}
			_ = first.Close()
		}
	})
	eventually(t, "all goroutines end", func() bool { return len(leak.Find()) <= before })
}
