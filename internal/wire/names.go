package wire

import (
	"maps"

	"github.com/nearcall/nearcall/internal/link"
)

// How a name is written, beside n + 2 for the one with the number n.
const (
	nameNew     = 0 // it gets the next number
	nameLiteral = 1 // it gets none
	nameFirst   = 2
)

// How a profile is written, beside n for the one with the number n.
const profileNew = 0

// A table counts what one direction of a connection has numbered so far. Both ends
// count alike, so that they agree on what still gets a number.
type table struct{ size int }

// add makes room for strings of so many bytes together. It reports whether
// there is.
func (t *table) add(strings, bytes int) bool {
	size := t.size + strings*stringCost + bytes
	if size > maxTable {
		return false
	}
	t.size = size
	return true
}

// profileStrings is how many strings a profile consists of.
const profileStrings = 5

// profileBytes is the length of all of them.
func profileBytes(p *link.Profile) int {
	return len(p.Authority) + len(p.UserAgent) + len(p.ContentSubtype) + len(p.Encoding) + len(p.Accept)
}

// An Encoder knows what one direction of a connection has numbered so far. Its
// zero value is that of a new connection. Whoever holds the right to write
// frames has it to itself.
type Encoder struct {
	table    table
	names    map[string]uint64
	profiles map[link.Profile]uint64
	last     *link.Profile // the one that was written last, which is mostly the next, too
	lastAt   uint64
}

// A mark is what an Encoder knew at some time.
type mark struct {
	table           table
	names, profiles int
}

func (e *Encoder) mark() mark { return mark{e.table, len(e.names), len(e.profiles)} }

// forget makes e know no more than it did at m, because what it appended since
// then is not sent.
func (e *Encoder) forget(m mark) {
	e.table = m.table
	if len(e.names) > m.names {
		maps.DeleteFunc(e.names, func(_ string, n uint64) bool { return n >= uint64(m.names) })
	}
	if len(e.profiles) > m.profiles {
		maps.DeleteFunc(e.profiles, func(_ link.Profile, n uint64) bool { return n > uint64(m.profiles) })
		e.last = nil
	}
}

// appendName appends s, and numbers it if it may and remember is set.
func (e *Encoder) appendName(b []byte, s string, remember bool) []byte {
	if n, known := e.names[s]; known {
		return appendUint(b, n+nameFirst)
	}
	if !remember || len(s) > maxName || !e.table.add(1, len(s)) {
		return appendString(append(b, nameLiteral), s)
	}
	if e.names == nil {
		e.names = make(map[string]uint64)
	}
	e.names[s] = uint64(len(e.names))
	return appendString(append(b, nameNew), s)
}

// appendProfile appends p, and numbers it if it may and remember is set.
func (e *Encoder) appendProfile(b []byte, p *link.Profile, remember bool) []byte {
	if p == e.last {
		return appendUint(b, e.lastAt)
	}
	key := *p
	key.Shared = false // means nothing to another process
	n, known := e.profiles[key]
	if !known {
		b = append(b, profileNew)
		for _, s := range [...]string{p.Authority, p.UserAgent, p.ContentSubtype, p.Encoding, p.Accept} {
			b = appendString(b, s)
		}
		if !remember || !e.table.add(profileStrings, profileBytes(p)) {
			return b
		}
		if e.profiles == nil {
			e.profiles = make(map[link.Profile]uint64)
		}
		n = uint64(len(e.profiles)) + 1
		e.profiles[key] = n
		e.last, e.lastAt = p, n
		return b
	}
	e.last, e.lastAt = p, n
	return appendUint(b, n)
}

// A Decoder knows what the peer has numbered so far. Its zero value is that of
// a new connection.
type Decoder struct {
	Places bool // messages may be in places of their own, beside the connection
	Block  int  // the largest block that is taken, as HeadSize and its like count; 0 for any

	table    table
	names    []knownName
	profiles []*link.Profile
}

// A knownName has been looked at once, when it came.
type knownName struct {
	s    string
	text bool // it is valid as one
}

func newName(s string) knownName { return knownName{s, link.ValidText(s)} }

// name reads a name.
func (d *Decoder) name(r *reader, remember bool) string { return d.entry(r, remember).s }

// entry reads a name. remember is false in a block that came in pieces, which
// has no new names.
func (d *Decoder) entry(r *reader, remember bool) knownName {
	switch n := r.uint(); {
	case r.err != nil:
		return knownName{}
	case n == nameLiteral:
		if b := r.bytes(); r.wrong == nil {
			return newName(string(b))
		}
		return knownName{} // nobody looks at it
	case n == nameNew:
		s := newName(r.string())
		switch {
		case r.err != nil:
		case !remember:
			r.fail("a block in pieces has a new name")
		case len(s.s) > maxName:
			r.fail("the peer asks to remember a name of %d bytes", len(s.s))
		case !d.table.add(1, len(s.s)):
			r.fail("the peer asks to remember more names than the %d bytes of the table hold", maxTable)
		default:
			d.names = append(d.names, s)
		}
		return s
	case n-nameFirst >= uint64(len(d.names)):
		r.fail("name %d of %d", n-nameFirst, len(d.names))
		return knownName{}
	default:
		return d.names[n-nameFirst]
	}
}

// profile reads a profile.
func (d *Decoder) profile(r *reader, remember bool) *link.Profile {
	n := r.uint()
	if n != profileNew {
		if n > uint64(len(d.profiles)) {
			r.fail("profile %d of %d", n, len(d.profiles))
			return nil
		}
		p := d.profiles[n-1]
		objectTo(r, p)
		return p
	}
	p := &link.Profile{Authority: r.string(), UserAgent: r.string(), ContentSubtype: r.string(), Encoding: r.string(), Accept: r.string()}
	p.Check()
	objectTo(r, p)
	if r.err == nil && remember && d.table.add(profileStrings, profileBytes(p)) {
		d.profiles = append(d.profiles, p)
	}
	return p
}

// objectTo notes what is wrong with p.
func objectTo(r *reader, p *link.Profile) {
	if what := p.Invalid(); what != "" {
		r.object("the %s has control characters", what)
	}
}
