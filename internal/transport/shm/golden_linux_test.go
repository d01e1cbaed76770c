package shm

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// A moment is the state of the two control pages after a step.
type moment struct {
	Does   string            `json:"does"`
	Rings  string            `json:"rings,omitempty"`
	Server map[string]uint64 `json:"server"`
	Client map[string]uint64 `json:"client"`
}

// TestGoldenWords records the words while the sides send, sleep and wait.
func TestGoldenWords(t *testing.T) {
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		t.Skip("the vectors are those of a little-endian machine")
	}
	f, err := newFile(layout{ring: minRing, slabs: partAlign})
	if err != nil {
		t.Fatal(err)
	}
	defer f.release()
	var mine, theirs [2]side // the server's view, and the client's
	for i, server := range []bool{true, false} {
		if mine[i], theirs[i], err = newSides(f, server, plenty); err != nil {
			t.Fatal(err)
		}
		defer mine[i].free()
		defer theirs[i].free()
	}
	client, server := newSender(mine[1].segment, theirs[1].segment), newReceiver(mine[0].segment, theirs[0].segment)
	words := func(s segment) map[string]uint64 {
		return map[string]uint64{
			"tail": s.word(atTail).Load(), "head": s.word(atHead).Load(),
			"asleep": s.word(atAsleep).Load(), "wants": s.word(atWants).Load(),
		}
	}
	all := []moment{}
	step := func(does string, f func() (rings bool, wake string)) {
		t.Helper()
		rings, wake := f()
		if !rings {
			wake = ""
		}
		// Each side's words as the other side maps them.
		all = append(all, moment{does, wake, words(theirs[1].segment), words(theirs[0].segment)})
	}
	must := func(ok bool, err error) {
		t.Helper()
		if !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	send := func(b string) func() (bool, string) {
		return func() (bool, string) {
			n, err := client.put([]byte(b))
			must(n == len(b), err)
			return client.publish(), "data"
		}
	}
	receive := func(n int) func() (bool, string) {
		return func() (bool, string) {
			got, wake, err := server.read(make([]byte, n))
			must(got == n, err)
			return wake, "room"
		}
	}
	const line = "nearcall/1\n"
	step("the server has made the memory", func() (bool, string) { return false, "" })
	step("the client sends its line", send(line))
	step("the server receives it", receive(len(line)))
	step("the server finds nothing, and sleeps", func() (bool, string) { must(server.startSleeping()); return false, "" })
	step("the client fills the ring, round its end", send(strings.Repeat("0123456789abcdef", minRing/16)))
	step("the client finds no room, and waits for some", func() (bool, string) { must(client.startWaiting()); return false, "" })
	step("the server wakes", func() (bool, string) { server.stopSleeping(); return false, "" })
	step("the server receives a quarter of the ring", receive(minRing/4))
	step("the server receives another quarter", receive(minRing/4))
	step("the client wakes", func() (bool, string) { client.stopWaiting(); return false, "" })
	step("the server receives the rest", receive(minRing/2))
	step("the server sleeps again", func() (bool, string) { must(server.startSleeping()); return false, "" })
	step("the client sends a byte", send("x"))
	step("the client fills the ring again, in the same sleep of the server", send(strings.Repeat("0123456789abcdef", minRing/16)[:minRing-1]))
	step("the client waits for room a second time", func() (bool, string) { must(client.startWaiting()); return false, "" })
	step("the server wakes again", func() (bool, string) { server.stopSleeping(); return false, "" })
	step("the server receives half of the ring", receive(minRing/2))
	step("the server receives more before the client wakes", receive(minRing/4))
	step("the client wakes again", func() (bool, string) { client.stopWaiting(); return false, "" })

	pages := make(map[string][]string)
	for name, s := range map[string]segment{"server": theirs[1].segment, "client": theirs[0].segment} {
		for at := 0; at < controlIs; at += 8 {
			if b := s[at : at+8]; slices.ContainsFunc(b, func(c byte) bool { return c != 0 }) {
				pages[name] = append(pages[name], fmt.Sprintf("%d: %s", at, hex.EncodeToString(b)))
			}
		}
	}
	golden(t, "words.json", map[string]any{
		"ring": minRing, "steps": all, "pages": pages,
		"client's ring begins": string(theirs[0].ring()[:16]), "and ends": string(theirs[0].ring()[minRing-16:]),
	})
}
