package shm

import (
	"errors"
	"math/rand/v2"
	"testing"
)

// drafted returns a draft of n bytes.
func drafted(t *testing.T, a *arena, n int) (b []byte, at int) {
	t.Helper()
	b, at, ok := a.draft(n)
	if !ok {
		t.Fatalf("there is no draft of %d bytes", n)
	}
	return b[:cap(b)], at
}

func TestAMessageIsSentFromWhereItIsInADraft(t *testing.T) {
	a, _ := counted(1 << 20)
	_ = taken(t, a, 1) // so that the draft does not begin at 0
	b, at := drafted(t, a, 200_000)
	for name, part := range map[string][]byte{"all": b, "the beginning": b[:70_000], "the end": b[len(b)-100_001:], "the middle": b[65_537:90_000]} {
		sent, ok := a.send(part)
		if want := at + len(b) - cap(part[:0:cap(part)]); !ok || sent != want {
			t.Fatalf("%s is sent from %d, %v, want %d", name, sent, ok, want)
		}
		if _, ok := a.send(b[:70_000]); ok {
			t.Errorf("after %s another message is sent before it was returned", name)
		}
		if err := a.free(sent); err != nil {
			t.Fatal(err)
		}
		if err := a.free(sent); !errors.Is(err, errBroken) {
			t.Errorf("%s is returned twice: %v", name, err)
		}
	}
	a.endDraft(at)
	if _, ok := a.send(b); ok {
		t.Error("a message is sent from a draft that has ended")
	}
	if _, ok := a.send(make([]byte, 100_000)); ok {
		t.Error("a message is sent from memory of another kind")
	}
	a.close()
}

func TestAPeerCannotReturnADraft(t *testing.T) {
	a, _ := counted(1 << 20)
	b, at := drafted(t, a, 100_000)
	if err := a.free(at); !errors.Is(err, errBroken) {
		t.Errorf("a draft is returned that was not sent: %v", err)
	}
	sent, _ := a.send(b[64:])
	a.endDraft(at)
	if err := a.free(at); !errors.Is(err, errBroken) {
		t.Errorf("the slab is returned, and not the message: %v", err)
	}
	if err := a.free(sent); err != nil {
		t.Error(err)
	}
	a.close()
}

// Whatever users and peers do, and in whichever order, a slab is used again only when the user has
// ended the draft and the peer has returned its message, and the memory is unmapped only when
// all drafts have ended.
func TestDraftsAreInUseUntilBothSidesAreDone(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 0))
		a, pages := counted(2 << 20)
		type draft struct {
			b        []byte
			at       int
			sent     int // -1 if it is not
			ended    bool
			from, to int
		}
		var all []*draft
		closed := false
		drop := func(i int) {
			if d := all[i]; d.ended && d.sent < 0 {
				all = append(all[:i], all[i+1:]...)
			}
		}
		for range 300 {
			i := 0
			if len(all) > 0 {
				i = r.IntN(len(all))
			}
			switch op := r.IntN(20); {
			case op < 7 || len(all) == 0:
				b, at, ok := a.draft(1 + r.IntN(300_000))
				if ok && closed {
					t.Fatal("a closed arena has a draft")
				}
				if !ok {
					continue
				}
				for _, d := range all {
					if at < d.to && at+cap(b) > d.from {
						t.Fatalf("seed %d: the draft at %d overlaps that at %d, which is in use", seed, at, d.at)
					}
				}
				all = append(all, &draft{b: b[:cap(b)], at: at, sent: -1, from: at, to: at + cap(b)})
			case op < 12 && !all[i].ended:
				d := all[i]
				at, ok := a.send(d.b[r.IntN(len(d.b)):])
				if ok != (d.sent < 0 && !closed) {
					t.Fatalf("seed %d: a message of the draft is sent: %v", seed, ok)
				}
				if ok {
					d.sent = at
				}
			case op < 15 && all[i].sent >= 0:
				if err := a.free(all[i].sent); err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
				all[i].sent = -1
				drop(i)
			case op < 19 && !all[i].ended:
				all[i].ended = true
				a.endDraft(all[i].at)
				drop(i)
			case op == 19 && !closed && r.IntN(5) == 0:
				closed = true
				a.close()
			}
			writing := false
			for _, d := range all {
				writing = writing || !d.ended
			}
			if pages.dropped != (closed && !writing) {
				t.Fatalf("seed %d: unmapped: %v, closed: %v, a draft goes on: %v", seed, pages.dropped, closed, writing)
			}
		}
		a.close()
	}
}
