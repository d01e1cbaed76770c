package sniff

import (
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/nearcall/nearcall/internal/link"
)

// Either grpc-go's transport serves a connection of HTTP/2, fast and only gRPC, or net/http, which
// serves everything. The content type of its first request decides.
//
// Many clients wait for the server's SETTINGS before they make a request, and some wait until
// theirs are acknowledged. So grpc-go serves the connection first. If the first request is not
// gRPC, grpc-go reads EOF in its place, and net/http takes the connection over.
//
// Invariants, when net/http goes on:
//   - The client has got an acknowledgement for each PING and each of its SETTINGS. net/http gets
//     no PING and one SETTINGS, and does not send the acknowledgement of that.
//   - net/http gets no acknowledgement of grpc-go's SETTINGS. It would close the connection.
//   - The client does not know how many bytes grpc-go would receive on the connection: until the
//     connection is grpc-go's for good, its WINDOW_UPDATE waits. (No DATA precedes a request.)

const (
	maxOpening = 16 << 10 // how many bytes of a client's frames are kept for net/http
	maxBlock   = 64 << 10 // how many bytes of a client's first header block are
	maxFrame   = 16 << 10 // the payload of a frame, before a server allows more
	frameHead  = 9        // the head of a frame, in bytes
)

// An opening is the connection that grpc-go gets before the first request has arrived.
type opening struct {
	net.Conn
	taken  atomic.Bool // net/http has the connection, and grpc-go must not use it
	direct atomic.Bool // the connection is grpc-go's, and nothing waits to be written

	// Used by the goroutine that reads.
	ready   []byte // bytes that grpc-go may read
	in      []byte // other bytes that have arrived; they begin with the first request, if it has begun
	at      int    // how much of the first request has been parsed
	block   []byte // its header block
	decided bool

	settings []byte // the payloads of the client's SETTINGS
	others   []byte // its WINDOW_UPDATE and other frames that are no part of a request
	received int    // how many SETTINGS the client has sent
	pings    []byte // the payloads of the client's PINGs
	acked    int    // how many SETTINGS of grpc-go the client has acknowledged

	onRequest func()         // called once the first request is gRPC's; may be nil
	handOver  func(Handover) // passes the connection to net/http
	handover  Handover       // of it; Conn and First are set then

	mu    sync.Mutex
	out   []byte // bytes that grpc-go has written; they begin with a frame
	later []byte // its WINDOW_UPDATE of the connection
	ours  bool   // the connection is grpc-go's
	sent  int    // how many SETTINGS grpc-go has sent
	acks  int    // how many of the client's SETTINGS it has acknowledged
	pongs int    // how many of the client's PINGs it has acknowledged
}

// A Handover is a connection whose client speaks a protocol other than nearcall's.
type Handover struct {
	Conn     net.Conn             // secured already; has Deadline
	First    []byte               // bytes that were already read
	Auth     credentials.AuthInfo // of the peer
	Deadline time.Time            // for the first bytes of the peer
	Path     string               // the path at which WebSockets are opened; "" for any
	Accept   func(link.Session) link.Acceptor
}

// TakeHTTP2 passes a connection of HTTP/2 to grpc or http, without waiting for its first request. If
// that has not arrived, grpc gets the connection. Should the request not be gRPC's, grpc reads EOF in
// its place, and http gets the rest, with a new deadline.
func TakeHTTP2(h Handover, grpc, http func(Handover), deadline func() time.Time) {
	o := &opening{Conn: h.Conn, handover: h, ready: []byte(preface), in: h.First[len(preface):]}
	o.handOver = func(h Handover) {
		h.Deadline = deadline()
		_ = h.Conn.SetDeadline(h.Deadline)
		http(h)
	}
	switch o.parse() {
	case byHTTP:
		http(h)
	case byGRPC:
		grpc(h)
	default:
		h.Conn, h.First = o, nil
		grpc(h)
	}
}

// A server says which package serves a connection of HTTP/2.
type server byte

const (
	undecidedYet server = iota
	byGRPC              // also if the client breaks a rule: grpc-go knows how to refuse it
	byHTTP
)

// parse parses the frames that have arrived.
func (o *opening) parse() server {
	for len(o.in)-o.at >= frameHead {
		rest := o.in[o.at:]
		kind, flags, n := rest[3], rest[4], payloadSize(rest)
		if n > maxFrame {
			return byGRPC
		}
		if len(rest) < frameHead+n {
			break
		}
		frame, payload := rest[:frameHead+n], rest[frameHead:frameHead+n]
		begun := o.at > 0
		switch isAck := flags&flagEnd != 0; {
		case begun != (kind == frameContinuation), o.received == 0 && (kind != frameSettings || isAck):
			return byGRPC
		case kind == frameHeaders, kind == frameContinuation:
			if kind == frameHeaders {
				payload = blockOf(payload, flags)
			}
			o.block = append(o.block, payload...)
			if o.at += len(frame); flags&flagHeaders != 0 {
				return serverFor(o.block)
			}
			if o.at > maxBlock {
				return byGRPC
			}
			continue
		case kind == frameSettings && isAck:
			o.acked++
		case kind == frameSettings && n%settingSize == 0:
			o.received++
			o.settings = append(o.settings, payload...)
		case kind == framePing && isAck:
		case kind == framePing && n == pingSize:
			o.pings = append(o.pings, payload...)
		case kind == frameWindowUpdate, kind == framePriority, kind > frameContinuation:
			o.others = append(o.others, frame...)
		default:
			return byGRPC
		}
		if max(len(o.settings), len(o.others), len(o.pings)) > maxOpening {
			return byGRPC
		}
		o.ready, o.in = append(o.ready, frame...), rest[len(frame):]
	}
	return undecidedYet
}

func payloadSize(head []byte) int { return int(head[0])<<16 | int(head[1])<<8 | int(head[2]) }

// blockOf returns the part of a header block in the payload of a HEADERS frame. If that is
// malformed, the server refuses it.
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

// Read implements [net.Conn] for grpc-go.
func (o *opening) Read(b []byte) (int, error) {
	for len(o.ready) == 0 && !o.decided {
		n, err := o.Conn.Read(b)
		if n == 0 && err != nil {
			return 0, err
		}
		o.in = append(o.in, b[:n]...)
		switch o.parse() {
		case byGRPC:
			o.settle()
		case byHTTP:
			o.leave()
		}
	}
	switch {
	case o.taken.Load():
		return 0, io.EOF
	case len(o.ready) == 0:
		return o.Conn.Read(b)
	}
	return Take(b, &o.ready), nil
}

// OnRequest sets a function that is called once the connection is grpc-go's for good. It is called
// before the first Read.
func (o *opening) OnRequest(f func()) { o.onRequest = f }

// settle leaves the connection to grpc-go for good.
func (o *opening) settle() {
	o.decided = true
	if o.onRequest != nil {
		o.onRequest()
	}
	o.ready, o.in = append(o.ready, o.in...), nil
	o.block, o.settings, o.others, o.pings = nil, nil, nil, nil
	go o.flush() // the write could wait for a client that waits for this side to read
}

// leave hands the connection to net/http.
func (o *opening) leave() {
	o.decided, o.ready = true, nil
	o.mu.Lock()
	o.taken.Store(true)
	var missing []byte
	for range o.received - o.acks {
		missing = frame(missing, frameSettings, flagEnd, 0, "")
	}
	for ping := range slices.Chunk(o.pings[o.pongs*pingSize:], pingSize) {
		missing = frame(missing, framePing, flagEnd, 0, string(ping))
	}
	owed := o.sent - o.acked
	o.mu.Unlock()
	if len(missing) > 0 {
		_, _ = o.Conn.Write(missing) // net/http gets the error again
	}
	h := o.handover
	h.First = frame([]byte(preface), frameSettings, 0, 0, string(o.settings))
	h.First = append(append(h.First, o.others...), o.in[:o.at]...)
	c := &continued{Conn: o.Conn, in: acks{left: owed}, out: acks{left: 1}}
	c.ready = c.in.drop(o.in[o.at:])
	h.Conn = c
	o.handOver(h)
}

// Write implements [net.Conn] for grpc-go.
func (o *opening) Write(b []byte) (int, error) {
	if o.direct.Load() {
		return o.Conn.Write(b)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.out = append(o.out, b...)
	if err := o.flushLocked(); err != nil {
		return 0, err
	}
	return len(b), nil
}

// flush writes everything that waits. Later bytes need not wait.
func (o *opening) flush() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ours = true
	_ = o.flushLocked() // grpc-go gets the error again
}

// flushLocked passes on the bytes of grpc-go that the client may have.
func (o *opening) flushLocked() error {
	var may []byte
	switch {
	case o.taken.Load():
		o.out = nil
		return nil
	case o.ours:
		may = append(o.later, o.out...)
		o.later, o.out = nil, nil
		defer o.direct.Store(true)
	}
	for len(o.out) >= frameHead && len(o.out) >= frameHead+payloadSize(o.out) {
		whole := o.out[:frameHead+payloadSize(o.out)]
		o.out = o.out[len(whole):]
		switch kind, isAck := whole[3], whole[4]&flagEnd != 0; {
		case kind == frameWindowUpdate:
			o.later = append(o.later, whole...)
			continue
		case kind == frameSettings && isAck:
			o.acks++
		case kind == frameSettings:
			o.sent++
		case kind == framePing && isAck:
			o.pongs++
		}
		may = append(may, whole...)
	}
	if len(may) == 0 {
		return nil
	}
	_, err := o.Conn.Write(may)
	return err
}

// Close implements [net.Conn] for grpc-go.
func (o *opening) Close() error {
	if o.taken.Load() {
		return nil
	}
	return o.Conn.Close()
}

// unlessTaken sets a deadline for grpc-go.
func (o *opening) unlessTaken(set func(time.Time) error, t time.Time) error {
	if o.taken.Load() {
		return nil
	}
	return set(t)
}

func (o *opening) SetDeadline(t time.Time) error { return o.unlessTaken(o.Conn.SetDeadline, t) }

func (o *opening) SetReadDeadline(t time.Time) error { return o.unlessTaken(o.Conn.SetReadDeadline, t) }

func (o *opening) SetWriteDeadline(t time.Time) error {
	return o.unlessTaken(o.Conn.SetWriteDeadline, t)
}

// A continued is the connection that net/http gets after grpc-go has begun to serve it.
// It implements [net.Conn].
type continued struct {
	net.Conn
	ready   []byte // bytes that net/http may read
	in, out acks
}

// NetConn returns the connection below, as NetConn of a *tls.Conn does.
func (c *continued) NetConn() net.Conn { return c.Conn }

func (c *continued) Read(b []byte) (int, error) {
	for len(c.ready) == 0 {
		n, err := c.Conn.Read(b)
		if c.in.left == 0 || n == 0 {
			return n, err
		}
		c.ready = c.in.drop(b[:n])
	}
	return Take(b, &c.ready), nil
}

func (c *continued) Write(b []byte) (int, error) {
	if c.out.left == 0 {
		return c.Conn.Write(b)
	}
	if rest := c.out.drop(b); len(rest) > 0 {
		if _, err := c.Conn.Write(rest); err != nil {
			return 0, err
		}
	}
	return len(b), nil
}

// acks drops the first acknowledgements of SETTINGS from a sequence of frames.
type acks struct {
	left    int    // how many acknowledgements are still to be dropped
	head    []byte // the beginning of the head of a frame
	payload int    // how many bytes of a frame's payload are still to come
}

// drop returns a copy of the next bytes of the sequence without these acknowledgements. The
// beginning of a frame's head may come with a later call.
func (a *acks) drop(b []byte) (rest []byte) {
	for len(b) > 0 && a.left > 0 {
		if a.payload > 0 {
			n := min(a.payload, len(b))
			rest, b = append(rest, b[:n]...), b[n:]
			a.payload -= n
			continue
		}
		n := min(frameHead-len(a.head), len(b))
		a.head, b = append(a.head, b[:n]...), b[n:]
		if len(a.head) < frameHead {
			break
		}
		if a.head[3] == frameSettings && a.head[4]&flagEnd != 0 && payloadSize(a.head) == 0 {
			a.left--
		} else {
			rest, a.payload = append(rest, a.head...), payloadSize(a.head)
		}
		a.head = a.head[:0]
	}
	return append(rest, b...)
}
