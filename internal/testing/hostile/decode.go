package hostile

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/link"
	"google.golang.org/protobuf/proto"
)

var errShort = errors.New("the frame ends early")

// A body is the rest of a frame that is being decoded. err is the first error.
type body struct {
	rest []byte
	err  error
}

// decodeBody decodes the body of one frame. Of b the frame keeps only data, which the
// caller must copy.
func decodeBody(b []byte) (frame, error) {
	d := &body{rest: b}
	f := frame{kind: kind(d.byte()), id: d.uvarint()}
	switch f.kind {
	case kindOpen:
		o := &f.open
		o.Profile = new(link.Profile)
		for _, s := range []*string{&o.Method, &o.Authority, &o.UserAgent, &o.ContentSubtype, &o.Encoding, &o.Accept} {
			*s = d.string()
		}
		o.Check()
		f.timeout = time.Duration(d.uvarint())
		if f.timeout < 0 {
			d.fail(errors.New("the timeout is out of range"))
		}
		o.Metadata = d.metadata()
	case kindHeader:
		f.md = d.metadata()
		if f.md == nil {
			f.md = metadata.MD{} // an empty header is a header
		}
	case kindData:
		if f.flags = flag(d.byte()); f.flags >= flags || f.flags == flagEndSend {
			d.fail(fmt.Errorf("a fragment has flags %#x", f.flags))
		}
		f.data, d.rest = d.rest, nil
	case kindEndSend, kindDrain:
	case kindEnd:
		f.md = d.metadata()
		f.status = d.status()
	case kindReset:
		if f.code = code(d.byte()); f.code >= numCodes {
			d.fail(fmt.Errorf("a reset has code %d", f.code))
		}
		f.text = d.string()
	case kindCredit, kindBye:
		f.n = d.uvarint()
	default:
		d.fail(fmt.Errorf("there are no frames of kind %d", f.kind))
	}
	session := f.kind == kindDrain || f.kind == kindBye
	if session != (f.id == 0) {
		d.fail(fmt.Errorf("a frame of kind %d has stream %d", f.kind, f.id))
	}
	if len(d.rest) > 0 {
		d.fail(fmt.Errorf("%d bytes follow the frame", len(d.rest)))
	}
	if d.err != nil {
		return frame{}, d.err
	}
	return f, nil
}

func (d *body) fail(err error) {
	if d.err == nil {
		d.err = err
	}
	d.rest = nil
}

func (d *body) byte() byte {
	if len(d.rest) == 0 {
		d.fail(errShort)
		return 0
	}
	b := d.rest[0]
	d.rest = d.rest[1:]
	return b
}

func (d *body) uvarint() uint64 {
	v, n := binary.Uvarint(d.rest)
	if n <= 0 || v > math.MaxInt64 {
		d.fail(errors.New("a number is malformed"))
		return 0
	}
	d.rest = d.rest[n:]
	return v
}

// count decodes the number of the elements that follow, each of which takes at least a
// byte.
func (d *body) count() int {
	n := d.uvarint()
	if n > uint64(len(d.rest)) {
		d.fail(errShort)
		return 0
	}
	return int(n)
}

func (d *body) string() string {
	n := d.count()
	s := string(d.rest[:n])
	d.rest = d.rest[n:]
	return s
}

// metadata decodes metadata; nil if it is empty.
func (d *body) metadata() metadata.MD {
	n := d.count()
	if n == 0 {
		return nil
	}
	md := make(metadata.MD)
	for range n {
		k := d.string()
		if _, twice := md[k]; twice {
			d.fail(fmt.Errorf("metadata has the key %q twice", k))
		}
		values := make([]string, d.count())
		for i := range values {
			values[i] = d.string()
		}
		if d.err != nil {
			return nil
		}
		md[k] = values
	}
	return md
}

// status decodes the rest of the frame as a status; nil is OK.
func (d *body) status() *status.Status {
	if len(d.rest) == 0 {
		return nil
	}
	p := status.New(codes.OK, "").Proto()
	if err := proto.Unmarshal(d.rest, p); err != nil {
		d.fail(fmt.Errorf("the status is malformed: %w", err))
		return nil
	}
	d.rest = nil
	st := status.FromProto(p)
	if st.Code() == codes.OK {
		d.fail(errors.New("the status of an error is OK"))
		return nil
	}
	return st
}
