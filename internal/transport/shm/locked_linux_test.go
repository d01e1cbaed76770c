package shm

import (
	"testing"

	"github.com/nearcall/nearcall/internal/scmrights"
	"github.com/nearcall/nearcall/internal/testing/blockedmem"
	"github.com/nearcall/nearcall/internal/testing/leak"
)

// A peer can hold the lock of the shared file. Nothing that others wait for takes that lock.
func TestAPeerThatKeepsTheFilesLockHoldsUpNothing(t *testing.T) {
	m, err := blockedmem.New()
	if err != nil {
		t.Skip("needs userfaultfd, which this system or user does not have: ", err)
	}
	a, b := sockets(t)
	scmrights.Accept(a)
	if err := send(a, theOffer()); err != nil {
		t.Fatal(err)
	}
	agreed := make(chan *Conn, 1)
	go func() {
		c, _, err := answer(b)
		if err != nil {
			t.Error(err)
		}
		agreed <- c
	}()
	_, files, err := receive(a, make([]byte, maxBody))
	if err != nil || len(files) != answerFiles {
		t.Fatalf("%d descriptors, %v", len(files), err)
	}
	defer closeFiles(files)
	unlocked, err := m.Lock(files[0], 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		m.Close()
		leak.Finally(t, "the peer's write ends", func() bool {
			select {
			case <-unlocked:
				return true
			default:
				return false
			}
		})
	}()
	if err := send(a, []byte{takes}); err != nil {
		t.Fatal(err)
	}
	c := soon(t, "the handshake", agreed)
	placed := make(chan bool, 1)
	go func() {
		_, at, ok := c.Place(1 << 20)
		c.Placed(at)
		placed <- ok && c.Returned(at) == nil
	}()
	if !soon(t, "Place", placed) {
		t.Error("there is no slab")
	}
	trimmed := make(chan struct{})
	go func() {
		c.slabs.trim()
		close(trimmed)
	}()
	eventually(t, "pages go back", func() bool {
		c.slabs.mu.Lock()
		defer c.slabs.mu.Unlock()
		return c.slabs.trimming
	})
	closed := make(chan error, 1)
	go func() { closed <- c.Close() }()
	if err := soon(t, "Close", closed); err != nil {
		t.Error(err)
	}
	select {
	case <-trimmed:
		t.Error("the lock was not kept")
	default:
	}
	m.Close()
	soon(t, "trim", trimmed)
}
