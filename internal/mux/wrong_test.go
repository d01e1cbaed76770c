package mux

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/metadata"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/wire"
)

// short appends a string of fewer than 128 bytes.
func short(b []byte, s string) []byte { return append(append(b, byte(len(s))), s...) }

// headOf returns the head of a call with a new profile and one entry of metadata.
func headOf(method, authority, key, value string) []byte {
	b := short([]byte{1}, method)
	b = short(append(b, 0), authority)
	b = append(b, 0, 0, 0, 0, 0, 1, 1)
	return short(short(b, key), value)
}

// manyOf returns metadata of n entries with one long name, which is sent once.
func manyOf(n int) []byte {
	b := []byte{byte(n&0x7f | 0x80), byte(n >> 7), 0, 0x80, 0x01} // a new name of 128 bytes
	b = append(b, strings.Repeat("k", 128)...)
	b = append(b, 0)
	for range n - 1 {
		b = append(b, 2, 0)
	}
	return b
}

// TestACallWithABadHeadIsReset checks that other calls continue, and that the credit
// adds up.
func TestACallWithABadHeadIsReset(t *testing.T) {
	for name, test := range map[string]struct {
		head []byte
		want string
	}{
		"method":             {headOf("/a/b\n", "", "k", "v"), "the method"},
		"authority":          {headOf("/a/b", "a\r\nb", "k", "v"), "the authority"},
		"key":                {headOf("/a/b", "", "K", "v"), "the key"},
		"value":              {headOf("/a/b", "", "k", "v\x00"), "control characters"},
		"more than is taken": {append([]byte{1, 4, '/', 'a', '/', 'b', 0, 0, 0, 0, 0, 0, 0}, manyOf(500)...), "the request header is larger"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &witness{}
				s, peer := met(t, Options{Config: configured(false, func(c *options.Connections) { c.ConnWindow = wire.MinWindow; c.MaxHeader = wire.MinBlock })}, w)
				peer.write(opened(1))
				before := w.first(t)
				bad := literal(head|wire.FlagMessage, 3, append(bytes.Clone(test.head), 1, 2, 3)...)
				peer.write(bad, literal(msg, 3, 4, 5), literal(finish, 3), opened(5))
				if len(w.closed) > 0 {
					t.Fatalf("the session ended: %v", w.closed)
				}
				resets := peer.of(wire.KindReset)
				if len(resets) != 1 || resets[0].Stream != 3 {
					t.Fatalf("%d resets; closed: %v", len(resets), w.closed)
				}
				if code, text, _ := wire.ParseReset(resets[0].Body); code != wire.ResetProtocol || !strings.Contains(text, test.want) {
					t.Errorf("code %d, %q", code, text)
				}
				if len(w.streams) != 2 || len(w.aborts) > 0 {
					t.Errorf("%d calls were accepted, and %v aborted", len(w.streams), w.aborts)
				}
				if s.connIn+s.taken != wire.MinWindow {
					t.Errorf("the peer may send %d, and is owed %d", s.connIn, s.taken)
				}
				for _, st := range []link.Stream{before, w.streams[1]} {
					if err := st.Send(&link.Frame{End: &link.End{}}); err != nil {
						t.Error(err)
					}
				}
				synctest.Wait()
				empty(t, s)
			})
		})
	}
}

// TestALargeProfileIsRefusedEachTime checks that a profile counts against the limit of
// a block also if the call refers to it by number.
func TestALargeProfileIsRefusedEachTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &witness{}
		s, peer := met(t, Options{Config: configured(false, func(c *options.Connections) { c.MaxHeader = wire.MinBlock })}, w)
		first := []byte{0, 4, '/', 'a', '/', 'b', 0, 0} // a new method, and a new profile without an authority
		const agent = wire.MinBlock
		first = append(first, agent&0x7f|0x80, agent>>7&0x7f|0x80, agent>>14)
		first = append(first, strings.Repeat("u", agent)...)
		first = append(first, 0, 0, 0, 0, 0)                                            // the rest of the profile, no timeout, no metadata
		peer.write(literal(head, 1, first...), literal(head, 3, 2, 1, 0, 0), opened(5)) // call 3 refers to both by number
		resets := peer.of(wire.KindReset)
		if len(resets) != 2 || resets[0].Stream != 1 || resets[1].Stream != 3 {
			t.Fatalf("%d resets; closed: %v", len(resets), w.closed)
		}
		for _, r := range resets {
			if code, text, _ := wire.ParseReset(r.Body); code != wire.ResetProtocol || !strings.Contains(text, "the request header is larger") {
				t.Errorf("code %d, %q", code, text)
			}
		}
		if len(w.streams) != 1 || len(w.closed) > 0 {
			t.Fatalf("%d calls were accepted; closed: %v", len(w.streams), w.closed)
		}
		if err := w.streams[0].Send(&link.Frame{End: &link.End{}}); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		empty(t, s)
	})
}

// TestACallWithABadAnswerFails checks that the callee gets a RESET and that other calls
// continue.
func TestACallWithABadAnswerFails(t *testing.T) {
	for name, test := range map[string]struct {
		answer []byte
		want   string
	}{
		"header":              {literal(head, 1, 1, 1, 1, 'K', 0), "the key"},
		"trailer":             {literal(finish, 1, 0, 1, 1, 1, 'k', 1, '\n'), "control characters"},
		"status":              {literal(finish, 1, 5, 1, 0xff, 0, 0), "UTF-8"},
		"details":             {literal(finish, 1, 5, 0, 1, 0xff, 0), "details"},
		"more than is taken":  {literal(head, 1, manyOf(500)...), "the header is larger"},
		"a trailer too long":  {literal(finish, 1, append([]byte{0}, manyOf(500)...)...), "the end is larger"},
		"a header and an end": {literal(head|wire.FlagMessage|wire.FlagEnd, 1, 1, 1, 1, 'K', 0, 0, 0, 7), "the key"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, peer := met(t, Options{Client: true, Config: configured(true, func(c *options.Connections) { c.MaxHeader = wire.MinBlock })}, nil)
				one := makes(t.Context(), s, "/a/b", 1, 1)
				synctest.Wait() // so that its id is 1
				other := makes(t.Context(), s, "/a/c", 1, 1)
				synctest.Wait()
				peer.write(test.answer)
				got := <-one
				if !errors.Is(got.err, link.ErrBroken) || !strings.Contains(got.err.Error(), test.want) {
					t.Errorf("the call fails with %v", got.err)
				}
				if resets := peer.of(wire.KindReset); len(resets) != 1 || resets[0].Stream != 1 {
					t.Errorf("%d resets", len(resets))
				}
				peer.write(literal(msg|wire.FlagEnd, 3, 0, 0, 1))
				if got := <-other; got.err != nil {
					t.Errorf("the other call fails with %v", got.err)
				}
				empty(t, s)
			})
		})
	}
}

// TestBothSidesHoldOneLimit checks that a session sends no block which a peer with the
// same limit refuses.
func TestBothSidesHoldOneLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &witness{}
		o := Options{Config: configured(false, func(c *options.Connections) { c.MaxHeader = wire.MinBlock })}
		client := o
		client.Client = true
		cs, _ := pair(t, client, o, w)
		accepted, refused := 0, 0
		for n := wire.MinBlock - 500; n < wire.MinBlock+200; n += 7 {
			st, err := cs.NewStream(t.Context(), &link.CallHeader{Method: "/a/b", Profile: &link.Profile{}, Metadata: metadata.MD{"k": {strings.Repeat("v", n)}}})
			if err != nil {
				refused++
				continue
			}
			accepted++
			synctest.Wait()
			if len(w.streams) != accepted {
				t.Fatalf("a header of about %d bytes was sent, and not taken", n)
			}
			st.Abort(context.Canceled)
		}
		if accepted == 0 || refused == 0 {
			t.Errorf("%d were accepted, %d refused", accepted, refused)
		}
	})
}
