package wire

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/nearcall/nearcall/internal/link"
)

// appendHead appends the head of a call.
func (e *Encoder) appendHead(b []byte, o *link.CallHeader, timeout time.Duration, remember bool) []byte {
	b = e.appendName(b, o.Method, remember)
	b = e.appendProfile(b, o.Profile, remember)
	b = binary.AppendUvarint(b, microseconds(timeout))
	return e.appendMetadata(b, o.Metadata, remember)
}

// microseconds returns d in microseconds, rounded up, or 0 if d is not positive.
func microseconds(d time.Duration) uint64 { return (uint64(max(d, 0)) + 999) / 1000 }

func duration(us uint64) time.Duration {
	return time.Duration(min(us, math.MaxInt64/1000)) * time.Microsecond
}

// head decodes the head of a call.
func (d *Decoder) head(r *reader, remember bool) (o *link.CallHeader, timeout time.Duration) {
	o = new(link.CallHeader)
	r.beginBlock("request header", d.Block)
	if o.Method = d.name(r, remember); !link.ValidText(o.Method) {
		r.object("the method has control characters")
	}
	o.Profile = d.profile(r, remember)
	if r.err != nil {
		return o, 0
	}
	r.spend(1+profileStrings, len(o.Method)+profileBytes(o.Profile))
	timeout = duration(r.uint())
	o.Metadata, o.Packed = d.sent(r, remember)
	return o, timeout
}

// The metadata of a call stays encoded if it has at least manyEntries entries. A map takes about a
// hundred bytes for an entry that has two bytes on the wire, and a peer can have a thousand calls
// open.
const manyEntries = 64

// sent decodes the metadata of a call's head. It validates all entries, also those that stay
// encoded.
func (d *Decoder) sent(r *reader, remember bool) (metadata.MD, link.Packed) {
	rest, names := r.rest, d.names
	peek := reader{rest: rest}
	many := peek.count(minEntry) >= manyEntries
	md := d.metadata(r, remember)
	if !many || r.err != nil || r.wrong != nil {
		return md, nil
	}
	return nil, &packed{bytes.Clone(rest[:len(rest)-len(r.rest)]), slices.Clip(names), remember}
}

// packed is validated metadata in its encoded form.
type packed struct {
	b        []byte
	names    []string // the names that were known before the metadata was decoded
	remember bool
}

// Unpack implements [link.Packed].
func (p *packed) Unpack() metadata.MD {
	d, r := Decoder{names: p.names}, reader{rest: p.b}
	r.beginBlock("", 0)
	return d.metadata(&r, p.remember)
}

func (e *Encoder) appendMetadata(b []byte, md metadata.MD, remember bool) []byte {
	n := 0
	for _, values := range md {
		n += len(values)
	}
	b = binary.AppendUvarint(b, uint64(n))
	for k, values := range md {
		for _, v := range values {
			b = appendString(e.appendName(b, k, remember), v)
		}
	}
	return b
}

// minEntry is the minimum size of a metadata entry on the wire, in bytes.
const minEntry = 2

// metadata decodes metadata, and returns nil if it has no entries. It counts entries before it
// allocates memory for them. Once the block is too large, it decodes the rest only for the new
// names in it.
func (d *Decoder) metadata(r *reader, remember bool) metadata.MD {
	n := r.count(minEntry)
	if n == 0 {
		return nil
	}
	var md metadata.MD
	var values []string // of all keys; those of one key are adjacent
	if r.spend(n, 0); r.wrong == nil {
		md, values = make(metadata.MD, min(n, 16)), make([]string, 0, n)
	}
	key, from := "", 0 // values[from:] belong to key
	for range n {
		k, v := d.name(r, remember), r.bytes()
		if r.err != nil {
			return nil
		}
		r.spend(0, len(k)+len(v))
		if r.wrong != nil {
			continue
		}
		if at := len(values); at == 0 || k != key {
			if at > 0 {
				md[key] = values[from:at:at]
			}
			key, from = k, at
			checkKey(r, md, k)
		}
		value := string(v)
		if !strings.HasSuffix(k, "-bin") && !link.ValidText(value) {
			r.object("metadata has a value for %.100q with control characters", k)
		}
		values = append(values, value)
	}
	if r.wrong == nil {
		md[key] = values[from:]
	}
	return md
}

// checkKey checks k, the next key after those in md.
func checkKey(r *reader, md metadata.MD, k string) {
	if !link.ValidKey(k) {
		r.object("metadata has the key %.100q", k)
	} else if _, again := md[k]; again {
		r.object("metadata has values for %.100q with those of another key between them", k)
	}
}

// appendEnd appends the end of a call.
func (e *Encoder) appendEnd(b []byte, end *link.End, remember bool) []byte {
	code := end.Status.Code()
	b = binary.AppendUvarint(b, uint64(code))
	if code != codes.OK {
		p := end.Status.Proto()
		b = appendString(b, p.GetMessage())
		var details []byte
		if len(p.GetDetails()) > 0 {
			details, _ = proto.Marshal(p) // if marshaling fails, send no details
		}
		b = append(binary.AppendUvarint(b, uint64(len(details))), details...)
	}
	return e.appendMetadata(b, end.Trailer, remember)
}

// end decodes the end of a call.
func (d *Decoder) end(r *reader, remember bool) *link.End {
	end := new(link.End)
	r.beginBlock("end", d.Block)
	r.spend(1, 0)
	if code := r.uint(); code != 0 {
		message, details := r.string(), r.bytes()
		r.spend(countDetails(details), len(message)+len(details))
		switch {
		case r.err != nil || r.wrong != nil:
		case code > math.MaxUint32: // codes.Code is a uint32, and applications define more codes than gRPC
			r.object("a status of code %d", code)
		case !utf8.ValidString(message):
			r.object("a status whose message is not UTF-8")
		default:
			end.Status = status.New(codes.Code(code), message)
		}
		if r.err == nil && r.wrong == nil && len(details) > 0 {
			p := end.Status.Proto()
			proto.Reset(p)
			if err := proto.Unmarshal(details, p); err != nil || uint64(uint32(p.GetCode())) != code {
				r.object("a status whose details are malformed")
			} else {
				end.Status = status.FromProto(p)
			}
		}
	}
	end.Trailer = d.metadata(r, remember)
	r.spend(trailerDetails(end.Trailer), 0)
	return end
}

// The size of a block, which counts against its receiver's limit, is the length of its strings
// plus stringCost for each, in bytes. It bounds the block's length on the wire and, up to a small
// factor, the memory that it takes at the receiver.

// HeadSize returns the size of the head of a call.
func HeadSize(o *link.CallHeader) int {
	return (1+profileStrings)*stringCost + len(o.Method) + profileBytes(o.Profile) + MetadataSize(o.Metadata)
}

// MetadataSize returns the size of a header or trailer.
func MetadataSize(md metadata.MD) (n int) {
	for k, values := range md {
		for _, v := range values {
			n += len(k) + len(v) + stringCost
		}
	}
	return n
}

// EndSize returns the size of the end of a call.
func EndSize(end *link.End) int {
	n := stringCost + len(end.Status.Message()) + MetadataSize(end.Trailer) + trailerDetails(end.Trailer)*stringCost
	if p := end.Status.Proto(); len(p.GetDetails()) > 0 {
		n += len(p.GetDetails())*stringCost + proto.Size(p) // details are sent as the marshaled status
	}
	return n
}

// detailsField is the number of the field details in google.rpc.Status.
const detailsField = 3

// countDetails returns how many details a marshaled google.rpc.Status has. Each becomes
// a message when it is unmarshaled.
func countDetails(b []byte) (n int) {
	for len(b) > 0 {
		number, kind, tag := protowire.ConsumeTag(b)
		if tag < 0 {
			return n // proto.Unmarshal fails at the same place
		}
		size := protowire.ConsumeFieldValue(number, kind, b[tag:])
		if size < 0 {
			return n
		}
		if number == detailsField {
			n++
		}
		b = b[tag+size:]
	}
	return n
}

// trailerDetails returns the number of status details in a trailer. The caller of the RPC may use
// them if the status itself has none.
func trailerDetails(trailer metadata.MD) int {
	if own := trailer[link.DetailsKey]; len(own) == 1 {
		return countDetails([]byte(own[0]))
	}
	return 0
}

// A block tracks the size of the block that a reader decodes.
type block struct {
	what  string
	size  int64
	limit int64
}

// beginBlock starts counting a block. A limit of 0 means no limit.
func (r *reader) beginBlock(what string, limit int) {
	r.block = block{what: what, limit: cmp.Or(int64(limit), math.MaxInt64)}
}

// spend adds strings with the given total length to the size of the block. It records
// an error of the call if the block becomes too large.
func (r *reader) spend(strings, bytes int) {
	b := &r.block
	if b.size += int64(strings)*stringCost + int64(bytes); b.size > b.limit && r.wrong == nil {
		r.object("the %s is larger than the %d bytes that its receiver takes", b.what, b.limit)
	}
}
