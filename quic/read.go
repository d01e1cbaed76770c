package quic

import (
	"io"
	"time"

	"github.com/nearcall/nearcall/internal/encoded"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wire"
)

// input is the state of the one goroutine that reads a stream: its pump, a caller that waits
// for its reply, or the goroutine that has accepted it.
type input struct {
	buf      *encoded.Buffer // the input; bytes from the offset at (below) on are not handled; nil for none
	at       int
	parts    *encoded.Buffer // the parts of a block; nil if no block has begun
	eof      bool            // the FIN has arrived
	finished bool            // nothing more is read
}

// Sizes of buffers. The larger one has room for the largest frame.
const (
	readBuffer = 4 << 10
	maxRead    = 128 << 10
)

// fill reads more.
func (st *stream) fill() error {
	r := &st.input
	switch {
	case r.eof:
		return errShort
	case r.buf == nil:
		r.buf, r.at = encoded.NewBuffer(readBuffer), 0
	case len(r.buf.B) < cap(r.buf.B):
	default:
		rest := copy(r.buf.B, r.buf.B[r.at:])
		r.buf.B, r.at = r.buf.B[:rest], 0
		if rest >= cap(r.buf.B)/2 {
			r.buf = r.buf.Grow(min(2*cap(r.buf.B), maxRead))
		}
	}
	n, err := st.qs.Read(r.buf.B[len(r.buf.B):cap(r.buf.B)])
	r.buf.B = r.buf.B[:len(r.buf.B)+n]
	r.eof = err == io.EOF
	if n > 0 || r.eof {
		return nil
	}
	return err
}

// frame returns the next frame and its length n. The frame is valid until skip(n) is called.
func (st *stream) frame() (f wire.Frame, n int, err error) {
	r := &st.input
	for {
		if r.buf != nil {
			if f, n, err = wire.Next(r.buf.B[r.at:]); n > 0 || err != nil {
				return f, n, err
			}
		}
		if err := st.fill(); err != nil {
			return f, 0, err
		}
	}
}

// skip drops n bytes of input.
func (st *stream) skip(n int) {
	r := &st.input
	if r.at += n; r.at == len(r.buf.B) {
		r.buf.Free()
		r.buf = nil
	}
}

// step reads the next frame, of length n. ok says whether the frame has a step of the call.
func (st *stream) step() (rc wire.Received, n int, ok bool, err error) {
	f, n, err := st.frame()
	if err != nil {
		return rc, 0, false, err
	}
	r := &st.input
	switch {
	case f.Stream != 1 && !f.Kind.Ignorable():
		return rc, n, false, wire.ProtocolError("a frame has the stream %d", f.Stream)
	case f.Kind == wire.KindPart:
		return rc, n, false, st.part(f.Body)
	case f.Kind.Stream():
	case r.parts != nil:
		return rc, n, false, wire.ProtocolError("another frame comes between the parts of a block")
	case f.Kind == wire.KindReset:
		code, text, err := wire.ParseReset(f.Body)
		if err != nil {
			return rc, n, false, err
		}
		r.finished = true
		st.abort(st.resetReason(code, text), false)
		return rc, n, false, nil
	case f.Kind.Ignorable():
		return rc, n, false, nil
	default:
		return rc, n, false, wire.ProtocolError("a frame of kind %#x", byte(f.Kind))
	}
	d := wire.Decoder{Block: st.session.maxHeader()}
	var before []byte
	if r.parts != nil {
		before = r.parts.B
	}
	rc, err = d.Stream(f, before, !st.caller)
	r.parts.Free()
	r.parts = nil
	if err == nil && rc.Wrong != nil {
		err = encoded.Because{Text: rc.Wrong.Error(), Kind: wire.ErrProtocol}
	}
	return rc, n, err == nil, err
}

// part keeps a part of a block.
func (st *stream) part(body []byte) error {
	r := &st.input
	r.parts = r.parts.MakeRoom(len(body))
	if limit := st.session.maxHeader(); len(r.parts.B)+len(body) > limit {
		return wire.ProtocolError("a block is larger than the %d bytes that were said to be taken", limit)
	}
	r.parts.B = append(r.parts.B, body...)
	return nil
}

// readHead reads the call's head, and the frames that have arrived with it.
func (st *stream) readHead() (*link.CallHeader, error) {
	for {
		rc, n, ok, err := st.step()
		switch {
		case err != nil:
			return nil, err
		case st.input.finished: // it was reset
			return nil, errShort
		case !ok:
			st.skip(n)
			continue
		case rc.Open == nil:
			return nil, wire.ProtocolError("a call begins without a head")
		}
		if rc.Timeout > 0 {
			rc.Open.Deadline = time.Now().Add(rc.Timeout)
		}
		st.sends, st.in.Encoding = rc.Open.Encoding, rc.Open.Encoding
		err = st.deliver(&rc)
		st.skip(n)
		return rc.Open, err
	}
}

// next reads the next frame, and delivers it. It returns false if no more frames follow, or after
// an error, with which it ends the call.
func (st *stream) next() bool {
	rc, n, ok, err := st.step()
	if ok {
		if rc.Open != nil {
			err = wire.ProtocolError("a call has two heads")
		} else {
			err = st.deliver(&rc)
		}
	}
	if err != nil {
		st.input.finished = true
		st.dropInput()
		st.failed(err)
		return false
	}
	st.skip(n)
	return !st.input.finished
}

// dropInput frees input that was not handled.
func (st *stream) dropInput() {
	st.input.buf.Free()
	st.input.parts.Free()
	st.input.buf, st.input.parts = nil, nil
}

// pump reads the stream for its receivers, until it ends.
func (st *stream) pump() {
	for st.mayRead() && st.next() {
	}
}
