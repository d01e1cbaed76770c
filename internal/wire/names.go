package wire

import (
	"encoding/binary"
	"maps"

	"github.com/nearcall/nearcall/internal/link"
)

// Values that introduce a name. nameFirst + n stands for name number n.
const (
	nameNew     = 0 // a new name that gets the next number
	nameLiteral = 1 // a name that gets no number
	nameFirst   = 2
)

// profileNew introduces a new profile. n > 0 stands for profile number n.
const profileNew = 0

// A table tracks the size of the table of names of one direction. Encoder and Decoder count in the
// same way, so they agree on which strings still get numbers.
type table struct{ size int }

// add reserves room for the given number of strings with the given total length. It
// reports whether there was room.
func (t *table) add(strings, bytes int) bool {
	size := t.size + strings*stringCost + bytes
	if size > maxTable {
		return false
	}
	t.size = size
	return true
}

// profileStrings is the number of strings in a profile.
const profileStrings = 5

// profileBytes is the total length of a profile's strings.
func profileBytes(p *link.Profile) int {
	return len(p.Authority) + len(p.UserAgent) + len(p.ContentSubtype) + len(p.Encoding) + len(p.Accept)
}

// An Encoder encodes one direction of a connection, and keeps the names and profiles that have
// numbers. Its zero value is ready for a new connection. It is not safe for concurrent use.
type Encoder struct {
	// Literal makes the encoder send names and profiles without numbers. It is for directions
	// whose frames have no common order.
	Literal bool

	table    table
	names    map[string]uint64
	profiles map[link.Profile]uint64
}

// A mark is a state of an Encoder, to which forget resets it.
type mark struct {
	table           table
	names, profiles int
}

func (e *Encoder) mark() mark { return mark{e.table, len(e.names), len(e.profiles)} }

// forget resets e to m, because the frames appended since will not be sent.
func (e *Encoder) forget(m mark) {
	e.table = m.table
	if len(e.names) > m.names {
		maps.DeleteFunc(e.names, func(_ string, n uint64) bool { return n >= uint64(m.names) })
	}
	if len(e.profiles) > m.profiles {
		maps.DeleteFunc(e.profiles, func(_ link.Profile, n uint64) bool { return n > uint64(m.profiles) })
	}
}

// appendName appends s. s gets a number if remember is set, s is short enough and the table has
// room.
func (e *Encoder) appendName(b []byte, s string, remember bool) []byte {
	if n, known := e.names[s]; known {
		return binary.AppendUvarint(b, n+nameFirst)
	}
	if !remember || e.Literal || len(s) > maxName || !e.table.add(1, len(s)) {
		return appendString(append(b, nameLiteral), s)
	}
	if e.names == nil {
		e.names = make(map[string]uint64)
	}
	e.names[s] = uint64(len(e.names))
	return appendString(append(b, nameNew), s)
}

// appendProfile appends p. p gets a number if remember is set and the table has room.
func (e *Encoder) appendProfile(b []byte, p *link.Profile, remember bool) []byte {
	key := *p
	key.Shared = false // has no meaning in another process
	if n, known := e.profiles[key]; known {
		return binary.AppendUvarint(b, n)
	}
	b = append(b, profileNew)
	for _, s := range [...]string{p.Authority, p.UserAgent, p.ContentSubtype, p.Encoding, p.Accept} {
		b = appendString(b, s)
	}
	if remember && !e.Literal && e.table.add(profileStrings, profileBytes(p)) {
		if e.profiles == nil {
			e.profiles = make(map[link.Profile]uint64)
		}
		e.profiles[key] = uint64(len(e.profiles)) + 1
	}
	return b
}

// A Decoder decodes one direction of a connection, and keeps the names and profiles
// that have numbers. Its zero value is ready for a new connection.
type Decoder struct {
	Places bool // messages may be in shared memory
	Block  int  // the largest block that is accepted, as HeadSize counts; 0 for no limit

	table    table
	names    []string
	profiles []*link.Profile
}

// name decodes a name. remember must be false in a block that is sent in PARTs: new
// names are an error there.
func (d *Decoder) name(r *reader, remember bool) string {
	switch n := r.uint(); {
	case r.err != nil:
		return ""
	case n == nameLiteral:
		if b := r.bytes(); r.wrong == nil {
			return string(b)
		}
		return "" // the call fails, so nobody uses the name
	case n == nameNew:
		s := r.string()
		switch {
		case r.err != nil:
		case !remember:
			r.fail("a block in pieces has a new name")
		case len(s) > maxName:
			r.fail("the peer asks to remember a name of %d bytes", len(s))
		case !d.table.add(1, len(s)):
			r.fail("the peer asks to remember more names than the %d bytes of the table hold", maxTable)
		default:
			d.names = append(d.names, s)
		}
		return s
	case n-nameFirst >= uint64(len(d.names)):
		r.fail("name %d of %d", n-nameFirst, len(d.names))
		return ""
	default:
		return d.names[n-nameFirst]
	}
}

// profile decodes a profile.
func (d *Decoder) profile(r *reader, remember bool) *link.Profile {
	var p *link.Profile
	switch n := r.uint(); {
	case n == profileNew:
		p = &link.Profile{Authority: r.string(), UserAgent: r.string(), ContentSubtype: r.string(), Encoding: r.string(), Accept: r.string()}
		p.Check()
		if r.err == nil && remember && d.table.add(profileStrings, profileBytes(p)) {
			d.profiles = append(d.profiles, p)
		}
	case n > uint64(len(d.profiles)):
		r.fail("profile %d of %d", n, len(d.profiles))
		return nil
	default:
		p = d.profiles[n-1]
	}
	if what := p.Invalid(); what != "" {
		r.object("the %s has control characters", what)
	}
	return p
}
