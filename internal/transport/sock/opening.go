package sock

import (
	"errors"
	"net"
	"time"
)

// A connection of HTTP/2 goes to grpc-go's transport, which serves gRPC fast and nothing else, or
// to package http, which serves all. The content type of its first request decides.
//
// Many clients wait for the server's SETTINGS before they make a request. So if the request is not
// there yet, the listener sends SETTINGS without a value. The taker of the connection sends another
// SETTINGS, which HTTP/2 allows. The client acknowledges both, and not every taker accepts an
// acknowledgement of what it has not sent: see Handover's OwesAck.
//
// A client that makes no request is one of gRPC: those of other protocols connect to make one. Until it is handed over, its pings are answered.

const (
	maxOpening = 16 << 10 // what a client may send before its first request, in bytes
	maxBlock   = 64 << 10 // its first header block, in bytes
	maxFrame   = 16 << 10 // the payload of a frame, before a server allows more
	frameHead  = 9        // the head of a frame, in bytes
)

var (
	errFlood   = errors.New("the client sends too much before its first request, or with its header")
	errStopped = errors.New("the listener was closed")
)

// An opening is what a client of HTTP/2 has sent up to its first request.
type opening struct {
	conn net.Conn
	kept []byte // the preface and the frames that the taker must read
	in   []byte // what follows, not parsed

	sent        int    // how much the client has sent before its first header, in bytes
	greeted     bool   // SETTINGS were sent
	owes        bool   // the client has not acknowledged them
	hasSettings bool   // the client has sent its own
	inBlock     bool   // the header block has begun
	block       []byte // what has arrived of it
	kind        contentType
	out         []byte
}

// read reads until the first request is known, and sets kind. It returns a timeout if the client
// has made no request and could make one later.
func (o *opening) read() error {
	var room []byte
	for {
		done, err := o.parse()
		if done || err != nil {
			return err
		}
		if !o.inBlock && !o.greeted && !(len(o.in) > 3 && o.in[3] == frameHeaders) {
			o.greet()
		}
		if len(o.out) > 0 {
			if _, err := o.conn.Write(o.out); err != nil {
				return errors.Join(net.ErrClosed, err)
			}
			o.out = o.out[:0]
		}
		if room == nil {
			room = make([]byte, 4<<10)
		}
		n, err := o.conn.Read(room)
		o.in = append(o.in, room[:n]...)
		if n == 0 && err != nil {
			return err
		}
	}
}

func (o *opening) greet() {
	o.out = frame(o.out, frameSettings, 0, 0, "")
	o.greeted, o.owes = true, true
}

// parse parses the frames that have arrived. It reports whether the header block is complete.
func (o *opening) parse() (done bool, err error) {
	for len(o.in) >= frameHead {
		n := int(o.in[0])<<16 | int(o.in[1])<<8 | int(o.in[2])
		if n > maxFrame {
			return false, errFlood
		}
		if len(o.in) < frameHead+n {
			return false, nil
		}
		kind, flags := o.in[3], o.in[4]
		whole, payload := o.in[:frameHead+n], o.in[frameHead:frameHead+n]
		o.in = o.in[frameHead+n:]
		if !o.inBlock && kind != frameHeaders {
			if o.sent += len(whole); o.sent > maxOpening {
				return false, errFlood
			}
		}
		switch {
		case kind == frameSettings && flags&flagEnd != 0 && n == 0 && o.owes:
			o.owes = false
			continue
		case kind == frameSettings:
			o.hasSettings = true
		case kind == framePing && flags&flagEnd == 0 && !o.inBlock:
			if !o.greeted { // which comes first
				o.greet()
			}
			o.out = frame(o.out, framePing, flagEnd, 0, string(payload))
			continue
		case kind == frameHeaders, kind == frameContinuation:
			if kind == frameHeaders {
				payload = blockOf(payload, flags)
			}
			o.inBlock, o.block = true, append(o.block, payload...)
		}
		o.kept = append(o.kept, whole...)
		if len(o.kept) > maxOpening+maxBlock { // also empty frames
			return false, errFlood
		}
		if o.inBlock && flags&flagHeaders != 0 && (kind == frameHeaders || kind == frameContinuation) {
			o.kind = contentTypeOf(o.block)
			o.block = nil
			return true, nil
		}
	}
	return false, nil
}

// blockOf returns the part of a header block in the payload of a HEADERS frame. If that is
// malformed, the taker refuses it.
func blockOf(payload []byte, flags byte) []byte {
	if flags&flagPadded != 0 && len(payload) > 0 {
		payload = payload[1:max(1, len(payload)-int(payload[0]))]
	}
	if flags&flagPriority != 0 {
		const priority = 5
		payload = payload[min(priority, len(payload)):]
	}
	return payload
}

// takeHTTP2 finds out who serves a connection of HTTP/2, and hands it over. mixes says that the
// client may send requests of all protocols over the connection. conn is h.Conn before it was
// secured.
func (l *Listener) takeHTTP2(conn net.Conn, h Handover, mixes bool) {
	take := l.GRPC
	switch {
	case take == nil, mixes && l.HTTP2 != nil:
		take = l.HTTP2
	case l.HTTP2 != nil:
		var late net.Error
		o := &opening{conn: h.Conn, kept: h.First[:len(preface):len(preface)], in: h.First[len(preface):]}
		err := errStopped
		if l.await(conn, true) {
			err = o.read()
		}
		if !l.await(conn, false) {
			err = errStopped
		}
		h.First, h.OwesAck = append(o.kept, o.in...), o.owes
		switch {
		case err == nil && (o.kind == noType || o.kind == otherType):
			take = l.HTTP2
		case err == nil: // also if the header is malformed: grpc-go says so
		case errors.As(err, &late) && late.Timeout() && o.hasSettings && !o.inBlock && len(o.in) == 0:
			h.Deadline = time.Now().Add(takerTime)
			_ = h.Conn.SetDeadline(h.Deadline)
		default:
			o.refuse(err)
			return
		}
	}
	l.removePending(conn) // the taker may keep it longer than the listener is open
	take(h)
}

// takerTime is how long a taker may take to send its settings.
const takerTime = time.Second

// refuse closes the connection. The client learns that no request was processed.
func (o *opening) refuse(why error) {
	code, text := uint32(noError), "this server is stopping"
	switch {
	case errors.Is(why, errFlood):
		code, text = enhanceYourCalm, why.Error()
	case !errors.Is(why, errStopped):
		_ = o.conn.Close()
		return
	}
	_ = o.conn.SetWriteDeadline(time.Now().Add(refusing))
	if !o.greeted {
		o.greet()
	}
	_, _ = o.conn.Write(appendGoAway(o.out, 0, code, text))
	hangUp(o.conn)
}
