package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"google.golang.org/grpc/metadata"

	"github.com/nearcall/nearcall/internal/link"
)

// Each byte from a peer may cost its receiver a bounded amount of memory, retained or
// allocated. These tests measure it.

// retained returns how many bytes of f's result are still in use after a garbage
// collection.
func retained(f func() (keep any)) int {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	keep := f()
	runtime.GC()
	runtime.ReadMemStats(&after)
	runtime.KeepAlive(keep)
	return int(after.HeapAlloc) - int(before.HeapAlloc)
}

// largeBlock is a block limit that outweighs all other allocations, in bytes.
const largeBlock = 2 << 20

// entries appends n, then n entries of metadata.
func entries(b []byte, n int, entry func(b []byte, i int) []byte) []byte {
	b = binary.AppendUvarint(b, uint64(n))
	for i := range n {
		b = entry(b, i)
	}
	return b
}

// knows returns a decoder that knows the given number of names, numbered from 0 on.
func knows(t testing.TB, names int) *Decoder {
	t.Helper()
	d := &Decoder{Block: largeBlock}
	if names == 0 {
		return d
	}
	_, err := d.Stream(stream(FlagHead, entries(nil, names, func(b []byte, i int) []byte {
		return append(appendString(append(b, nameNew), fmt.Sprint("k", i)), 0)
	})...), nil, false)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestWhatTheMetadataOfACallKeeps: it is there for as long as the call, and a map of it would
// take many times its bytes.
func TestWhatTheMetadataOfACallKeeps(t *testing.T) {
	const known = 600
	for name, c := range map[string]struct {
		n     int
		entry func(b []byte, i int) []byte
		packs bool
	}{
		"known keys":  {known, func(b []byte, i int) []byte { return append(binary.AppendUvarint(b, nameFirst+uint64(i)), 1, 'v') }, true},
		"a known key": {50_000, func(b []byte, _ int) []byte { return append(b, nameFirst, 0) }, true},
		"literal keys": {50_000, func(b []byte, i int) []byte {
			return append(appendString(append(b, nameLiteral), fmt.Sprintf("%05x", i)), 0)
		}, true},
		"new keys": {500, func(b []byte, i int) []byte { return append(appendString(append(b, nameNew), fmt.Sprint("n", i)), 0) }, true},
		"few":      {10, func(b []byte, i int) []byte { return append(binary.AppendUvarint(b, nameFirst+uint64(i)), 0) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			d := knows(t, known)
			block := entries([]byte{nameLiteral, 1, 'm', profileNew, 0, 0, 0, 0, 0, 0}, c.n, c.entry)
			var rc Received
			var err error
			kept := retained(func() any {
				rc, err = d.Stream(stream(FlagHead, block...), nil, true)
				return rc.Open
			})
			if err != nil || rc.Wrong != nil || (rc.Open.Packed != nil) != c.packs {
				t.Fatalf("%+v, %v", rc, err)
			}
			kept -= (len(d.names) - known) * 100 // the decoder's own
			if kept > 2*len(block)+8<<10 {
				t.Errorf("of %d bytes %d are kept", len(block), kept)
			}
			first := show(rc.Open.Sent())
			n := 0
			for _, values := range rc.Open.Sent() {
				n += len(values)
			}
			if n != c.n {
				t.Errorf("%d of %d entries", n, c.n)
			}
			// What is remembered later changes nothing.
			if _, err := d.Stream(stream(FlagHead, append([]byte{nameNew, 1, 'x', profileNew, 0, 0, 0, 0, 0, 0}, 1, nameNew, 1, 'y', 0)...), nil, true); err != nil {
				t.Fatal(err)
			}
			if show(rc.Open.Sent()) != first {
				t.Error("it is not the same when it is asked for again")
			}
		})
	}
}

func TestEachBlockHasItsLimit(t *testing.T) {
	const limit = MinBlock
	head := func(n int) *Step {
		s := &Step{Stream: 1, Open: open("/m", metadata.MD{"k": {strings.Repeat("v", n)}}), HalfClose: true}
		if got := HeadSize(s.Open); got > limit-100 {
			s.Open.Metadata["k"][0] = strings.Repeat("v", n+limit-got)
		}
		return s
	}
	many := make([]string, limit/(stringCost+1))
	details := func(n int) string { return strings.Repeat("\x1a\x00", n) } // empty ones
	const mostDetails = (limit - 2*stringCost - len(link.DetailsKey)) / (stringCost + 2)
	for name, c := range map[string]struct {
		s    *Step
		size int
		want string // empty if the block is accepted
	}{
		"a head as large as it may be":                    {s: head(limit)},
		"a header of empty values":                        {s: &Step{Stream: 1, Header: metadata.MD{"k": many}}},
		"and one more":                                    {s: &Step{Stream: 1, Header: metadata.MD{"k": append(many, "")}}, want: "the header is larger"},
		"an end":                                          {s: &Step{Stream: 1, End: &link.End{Trailer: metadata.MD{"k": many[1:]}}}},
		"an end that is larger":                           {s: &Step{Stream: 1, End: &link.End{Trailer: metadata.MD{"k": many}}}, want: "the end is larger"},
		"an end with details in its trailer":              {s: &Step{Stream: 1, End: &link.End{Trailer: metadata.MD{link.DetailsKey: {details(mostDetails)}}}}},
		"and one more detail":                             {s: &Step{Stream: 1, End: &link.End{Trailer: metadata.MD{link.DetailsKey: {details(mostDetails + 1)}}}}, want: "the end is larger"},
		"two of them, which are no details":               {s: &Step{Stream: 1, End: &link.End{Trailer: metadata.MD{link.DetailsKey: {details(mostDetails), details(mostDetails)}}}}},
		"a header and an end, each as large as it may be": {s: &Step{Stream: 1, Header: metadata.MD{"k": many}, End: &link.End{Trailer: metadata.MD{"k": many[1:]}}}},
	} {
		t.Run(name, func(t *testing.T) {
			size := 0
			switch {
			case c.s.Open != nil:
				size = HeadSize(c.s.Open)
			case c.s.End != nil:
				size = EndSize(c.s.End)
			default:
				size = MetadataSize(c.s.Header)
			}
			if (size > limit) != (c.want != "") {
				t.Fatalf("its sender counts %d bytes of %d", size, limit)
			}
			fromCaller := c.s.Open != nil
			b, _ := new(Encoder).Append(nil, c.s, 0)
			rc, err := (&Decoder{Block: limit}).Stream(one(t, b), nil, fromCaller)
			if err != nil || (rc.Wrong == nil) != (c.want == "") || rc.Wrong != nil && !strings.Contains(rc.Wrong.Error(), c.want) {
				t.Errorf("%v, %v", rc.Wrong, err)
			}
		})
	}
}

// TestWhatAConnectionRemembersIsBounded checks that the tables of both ends stop
// growing when they are full, however the peer fills them.
func TestWhatAConnectionRemembersIsBounded(t *testing.T) {
	const most = 4 * maxTable // includes Go's overhead for strings and growing slices
	check := func(t *testing.T, fill func(d *Decoder) error) {
		t.Helper()
		var err error
		got := retained(func() any {
			d := new(Decoder)
			err = fill(d)
			return d
		})
		if err != nil {
			t.Fatal(err)
		}
		if got > most {
			t.Errorf("%d bytes are kept", got)
		}
	}
	profiles := func(n int) func(d *Decoder) error {
		return func(d *Decoder) error {
			for i := range 2000 {
				body := append([]byte{nameLiteral, 1, 'm', profileNew}, appendString(nil, strings.Repeat("a", n))...)
				rc, err := d.Stream(stream(FlagHead, append(body, 0, 0, 0, 0, 0, 0)...), nil, true)
				if err != nil || rc.Wrong != nil {
					return fmt.Errorf("profile %d: %w, %w", i, err, rc.Wrong)
				}
			}
			return nil
		}
	}
	t.Run("profiles of 65,000 bytes", func(t *testing.T) { check(t, profiles(65_000)) })
	t.Run("empty profiles", func(t *testing.T) { check(t, profiles(0)) })
	for _, n := range []int{0, 1, maxName} {
		t.Run(fmt.Sprintf("names of %d bytes", n), func(t *testing.T) {
			check(t, func(d *Decoder) error {
				body := append(appendString([]byte{1, nameNew}, strings.Repeat("n", n)), 0)
				for range 10_000 {
					if _, err := d.Stream(stream(FlagHead, body...), nil, false); err != nil {
						if !errors.Is(err, ErrProtocol) || !strings.Contains(err.Error(), "more names") {
							return err
						}
						if got := len(d.names) * (n + stringCost); got < maxTable*9/10 {
							return fmt.Errorf("only %d names are remembered", len(d.names))
						}
						return nil
					}
				}
				return errors.New("names are remembered without end")
			})
		})
	}
}

// TestBothEndsAgreeOnWhatIsRemembered checks that the decoder resolves all numbers,
// whatever the encoder's table is filled with.
func TestBothEndsAgreeOnWhatIsRemembered(t *testing.T) {
	var e Encoder
	l := &listen{TB: t, fromCaller: true}
	for i := range 3000 {
		s := &Step{Stream: uint64(2*i + 1), HalfClose: true, Open: &link.CallHeader{
			Method:   fmt.Sprint("/m/", i%1500),
			Profile:  &link.Profile{Authority: strings.Repeat("a", i%1000)},
			Metadata: metadata.MD{fmt.Sprint("k", i%1700): {"v"}},
		}}
		o := s.Open
		b, _ := e.Append(nil, s, 0)
		l.frame(one(t, b))
		if got := l.heard; got.Method != o.Method || got.Profile.Authority != o.Profile.Authority || got.Metadata != show(o.Metadata) {
			t.Fatalf("call %d: %q %d %s", i, got.Method, len(got.Profile.Authority), got.Metadata)
		}
		if l.dec.table != e.table {
			t.Fatalf("call %d: %d bytes are remembered, and %d", i, e.table.size, l.dec.table.size)
		}
	}
	if e.table.size < maxTable*9/10 {
		t.Errorf("%d bytes are remembered", e.table.size)
	}
}
