package shm

import "unsafe"

// Drafts.
//
// A draft is a slab in which a user builds a message. The user gets it before the message exists, and
// the message is any part of it, which is sent from there.
//
// Invariants:
//   - A draft is in use until the user has ended it and the peer has returned the message in it,
//     whichever comes last.
//   - In a draft there is at most one message that was sent and that the peer has not returned.
//   - The arena stays mapped until the user has ended the draft, also after it was closed.

// draft is allocate for a user, who calls endDraft, and not doneWriting.
func (a *arena) draft(n int) (b []byte, at int, ok bool) {
	b, at, ok = a.allocate(n)
	if ok {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.allocated[at] = slab{class: a.allocated[at].class, draft: true}
	}
	return b, at, ok
}

// send says that the message b is sent, and returns its offset. ok is false if b is not in a draft,
// or if another message in it was sent and not returned.
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
	s := a.allocated[of]
	s.sent = true
	a.allocated[of], a.messages[at] = s, of
	return at, true
}

// draftAround returns the offset of the draft that the n bytes at offset at are in. The caller
// holds mu.
func (a *arena) draftAround(at, n int) (of int, ok bool) {
	for of = at &^ (1<<minSlab - 1); of >= 0; of -= 1 << minSlab {
		if s, ok := a.allocated[of]; ok {
			return of, s.draft && at+n <= of+1<<s.class
		}
	}
	return 0, false
}

// returned says that the peer has returned the message in the slab at offset of, which was a draft,
// or was never told of the message. The caller holds mu.
func (a *arena) returned(of int) {
	s := a.allocated[of]
	s.sent = false
	a.allocated[of] = s
	if !s.draft {
		a.drop(of, s)
	}
}

// endDraft says that the user does not use the draft at offset at any more.
func (a *arena) endDraft(at int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.allocated[at]
	s.draft = false
	a.allocated[at] = s
	a.beingWritten--
	if !s.sent {
		a.drop(at, s)
	}
	a.unmapIfUnused()
}
