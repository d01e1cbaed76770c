package shm

import "unsafe"

// Drafts.
//
// A draft is a slab in which a user builds a message. The user gets the slab before the message
// exists. The message is any part of the slab, and is sent from there.
//
// Invariants:
//   - A draft is in use until the user has ended it and the peer has returned the message in it,
//     whichever comes last.
//   - In a draft there is at most one message that was sent and that the peer has not returned.
//   - The arena stays mapped until the user has ended the draft, also after it was closed.

// send records that the message b is sent, and returns its offset. ok is false if b is not in a
// slab that a caller of allocate writes to, if the peer has not returned another message in that
// slab, or if the arena is closed.
func (a *arena) send(b []byte) (at int, ok bool) {
	if len(b) == 0 || len(a.mem) == 0 {
		return 0, false
	}
	at = int(uintptr(unsafe.Pointer(&b[0])) - uintptr(unsafe.Pointer(&a.mem[0])))
	if at < 0 || at > len(a.mem)-len(b) {
		return 0, false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	of, ok := a.draftAround(at, len(b))
	if !ok || a.allocated[of].sent || a.closed {
		return 0, false
	}
	a.use(of, true, true)
	a.messages[at] = of
	return at, true
}

// draftAround returns the offset of the draft that contains the n bytes at offset at. The caller
// holds mu.
func (a *arena) draftAround(at, n int) (of int, ok bool) {
	for of = at &^ (1<<minSlab - 1); of >= 0; of -= 1 << minSlab {
		if s, ok := a.allocated[of]; ok {
			return of, s.written && at+n <= of+1<<s.class
		}
	}
	return 0, false
}
