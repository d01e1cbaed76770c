// Package websocket carries the bytes of a connection over WebSocket (RFC 6455), as the
// payload of binary messages. The messages' boundaries mean nothing.
package websocket

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"math/bits"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Subprotocol is the subprotocol of connections that carry nearcall's protocol.
const Subprotocol = "nearcall.v1"

// A Prompt reads and writes a socket without blocking, as mux.Prompt does.
type Prompt interface {
	TryRead(b []byte) (n int, err error)
	TryWrite(all ...[]byte) (n int, err error)
}

// A Conn is a WebSocket whose messages are a stream of bytes. One goroutine may read while
// another writes; the other methods can be called at any time.
//
// Each Write, and each TryWrite of a [PromptConn], is one message. A TryWrite may write only a
// part of its message. The next write must then begin with the rest of the same bytes, and must
// not be empty. Control frames wait until the message is complete.
type Conn struct {
	net.Conn        // below: a socket, or TLS
	client   bool   // this side has opened the connection, and masks what it writes
	socket   Prompt // nil if the connection below is more than a bare socket

	// Owned by the reading goroutine.
	first []byte // frames that were read before
	in    reader

	// mu is held while something is written, which may block. The reader does not take it.
	//
	// Invariant: after Close was called, the goroutine that unlocks mu closes the connection.
	mu      sync.Mutex
	out     message // the message that is being written
	said    bool    // the Close frame was written: nothing may follow it
	head    [maxHeader]byte
	scratch []byte

	// Invariant: while a PONG is owed, busy is set. The goroutine that has set it writes the
	// PONG before it unsets busy, or leaves that to the Write that completes the message.
	asideMu sync.Mutex
	pong    []byte    // the payload of the PONG that is owed; nil for none
	busy    bool      // something is being written, or a message was written in part
	closing CloseCode // the code of the Close frame; 0 for closeNormal

	closed atomic.Bool // Close was called
}

// A message is the rest of a binary message that is being written. The zero value means no message.
type message struct {
	head []byte // the rest of the header
	left int    // how many bytes of payload are not written yet
	mask uint32 // for them
}

func (m *message) isDone() bool { return len(m.head) == 0 && m.left == 0 }

// A PromptConn is a Conn over a bare socket.
type PromptConn struct{ *Conn }

// newConn returns the WebSocket over conn, from which first was already read. The result is a
// *[PromptConn] if socket, which reads and writes conn, is not nil.
func newConn(conn net.Conn, socket Prompt, client bool, first []byte) net.Conn {
	c := &Conn{Conn: conn, socket: socket, client: client, first: first, in: reader{client: client}}
	if socket != nil {
		return &PromptConn{c}
	}
	return c
}

// Read implements [net.Conn].
func (c *Conn) Read(b []byte) (n int, err error) {
	for n == 0 && err == nil && len(b) > 0 {
		if n = c.takeFirst(b); n == 0 {
			n, err = c.Conn.Read(b)
		}
		n, err = c.handle(b[:n], err)
	}
	return n, err
}

// TryRead implements [Prompt].
func (c *PromptConn) TryRead(b []byte) (n int, err error) {
	if n = c.takeFirst(b); n == 0 {
		n, err = c.socket.TryRead(b)
	}
	return c.handle(b[:n], err)
}

// takeFirst moves bytes that were read before to b.
func (c *Conn) takeFirst(b []byte) (n int) {
	if len(c.first) == 0 {
		return 0
	}
	n = copy(b, c.first)
	if c.first = c.first[n:]; len(c.first) == 0 {
		c.first = nil
	}
	return n
}

// handle parses the frames in b. err is the error of the read.
func (c *Conn) handle(b []byte, err error) (n int, _ error) {
	n, wrong := c.in.payload(b)
	if wrong != nil {
		err = wrong
	}
	if c.in.pinged || wrong != nil {
		c.answer(wrong)
	}
	return n, err
}

// answer answers a PING, and sets the code of the Close frame after an error. It must not block:
// a peer that first completes its own write before it reads would wait for ever.
func (c *Conn) answer(wrong error) {
	c.asideMu.Lock()
	defer c.asideMu.Unlock()
	var v *violation
	var closed *CloseError
	switch {
	case errors.As(wrong, &v):
		c.closing = v.code
	case errors.As(wrong, &closed) && closed.Code != closeNone:
		c.closing = closed.Code
	}
	if c.in.pinged {
		c.in.pinged = false
		c.pong = append(make([]byte, 0, len(c.in.ping)), c.in.ping...)
		if !c.busy {
			c.busy = true
			go c.writePong()
		}
	}
}

// writePong writes the PONG that is owed. It may block until the connection is closed.
func (c *Conn) writePong() {
	c.mu.Lock()
	defer c.unlock()
	_ = c.settleLocked()
}

// beginsLocked records that something is being written.
func (c *Conn) beginsLocked() {
	c.asideMu.Lock()
	defer c.asideMu.Unlock()
	c.busy = true
}

// takePongLocked returns the PONG that is owed. If none is owed, or if it must wait for the rest of
// a message, takePongLocked returns nil. It unsets busy if nothing is left to write.
func (c *Conn) takePongLocked() (pong []byte) {
	c.asideMu.Lock()
	defer c.asideMu.Unlock()
	if c.out.isDone() {
		pong, c.pong = c.pong, nil
	}
	c.busy = pong != nil || !c.out.isDone()
	return pong
}

// settleLocked writes the PONG that is owed, if any, after a write.
func (c *Conn) settleLocked() error {
	for {
		pong := c.takePongLocked()
		if pong == nil || c.said {
			return nil
		}
		if _, err := c.Conn.Write(c.controlFrameLocked(opPong, pong)); err != nil {
			return err
		}
	}
}

// controlFrameLocked returns a control frame in scratch.
func (c *Conn) controlFrameLocked(op opcode, payload []byte) []byte {
	h, mask := c.headerLocked(op, len(payload))
	c.scratch = append(append(c.scratch[:0], h...), payload...)
	xor(c.scratch[len(h):], mask)
	return c.scratch
}

// headerLocked returns the header of a new frame with n bytes of payload, and the mask for them; a
// mask of 0 does not change them. The code that chooses the payload must not be able to predict the
// mask, or it could make the payload look like a request to a proxy (section 10.3 of RFC 6455). The
// numbers of package rand cannot be predicted.
func (c *Conn) headerLocked(op opcode, n int) (h []byte, mask uint32) {
	h = appendHeader(c.head[:0], op, n)
	if c.client {
		mask = rand.Uint32()
		h[1] |= flagMasked
		h = binary.LittleEndian.AppendUint32(h, mask)
	}
	return h, mask
}

var errClosing = errors.New("websocket: the connection is being closed")

const (
	// maxCopy is how much is copied at a time, in bytes. A copy is needed to mask a payload, or
	// to send it in one TLS record or packet with the bytes before it.
	maxCopy = 32 << 10

	// TryWrite writes a server's message of at least minGather bytes without a copy.
	minGather = 4 << 10
)

// Write implements [net.Conn].
func (c *Conn) Write(b []byte) (n int, err error) {
	all := [1][]byte{b}
	done, err := c.WriteAll(all[:])
	return int(done), err
}

// WriteAll writes the buffers all as one message, or as the rest of a message.
func (c *Conn) WriteAll(all [][]byte) (n int64, err error) {
	c.mu.Lock()
	defer c.unlock()
	if c.said {
		return 0, errClosing
	}
	c.beginsLocked()
	if c.out.isDone() {
		c.beginLocked(sizeOf(all))
	}
	for _, b := range all {
		for len(b) > 0 {
			if c.out.isDone() {
				c.beginLocked(len(b))
			}
			k, err := c.writePartLocked(b[:min(len(b), c.out.left)])
			n += int64(k)
			if err != nil {
				return n, err
			}
			b = b[k:]
		}
	}
	return n, c.settleLocked()
}

func sizeOf(all [][]byte) (n int) {
	for _, b := range all {
		n += len(b)
	}
	return n
}

// beginLocked begins a message of n bytes.
func (c *Conn) beginLocked(n int) {
	h, mask := c.headerLocked(opBinary, n)
	c.out = message{head: h, left: n, mask: mask}
}

// writePartLocked writes a part of the message, after the rest of its header.
func (c *Conn) writePartLocked(b []byte) (n int, err error) {
	if !c.client && len(b) > maxCopy && len(c.out.head) == 0 {
		n, err = c.Conn.Write(b)
		c.out.left -= n
		return n, err
	}
	b = b[:min(len(b), maxCopy)]
	k, err := c.Conn.Write(c.copiedLocked(b))
	return c.wroteLocked(k), err
}

// copiedLocked copies to scratch the rest of the header, and up to maxCopy bytes of the buffers
// all. It masks the payload with the message's mask, and returns the copy.
func (c *Conn) copiedLocked(all ...[]byte) []byte {
	c.scratch = append(c.scratch[:0], c.out.head...)
	for _, b := range all {
		c.scratch = append(c.scratch, b[:min(len(b), len(c.out.head)+maxCopy-len(c.scratch))]...)
	}
	xor(c.scratch[len(c.out.head):], c.out.mask)
	return c.scratch
}

// wroteLocked records that n bytes of the header and of the payload were written, and returns how
// many bytes of the payload are among them.
func (c *Conn) wroteLocked(n int) (payload int) {
	k := min(n, len(c.out.head))
	c.out.head = c.out.head[k:]
	payload = n - k
	c.out.left -= payload
	c.out.mask = bits.RotateLeft32(c.out.mask, -8*payload)
	return payload
}

// TryWrite implements [Prompt].
func (c *PromptConn) TryWrite(all ...[]byte) (n int, err error) {
	if !c.mu.TryLock() {
		return 0, nil // a PONG is being written; Write waits for that
	}
	defer c.unlock()
	if c.said {
		return 0, errClosing
	}
	if !c.out.isDone() {
		return 0, nil // Write must complete the message
	}
	c.beginsLocked()
	n, err = c.tryMessageLocked(all)
	c.finishTry()
	return n, err
}

// finishTry does the work of settle after a TryWrite, without blocking.
func (c *Conn) finishTry() {
	c.asideMu.Lock()
	defer c.asideMu.Unlock()
	switch {
	case c.pong == nil:
		c.busy = !c.out.isDone()
	case c.out.isDone():
		go c.writePong()
	}
}

// tryMessageLocked writes as much of a message as there is room for.
func (c *PromptConn) tryMessageLocked(all [][]byte) (n int, err error) {
	size := sizeOf(all)
	c.beginLocked(size)
	if !c.client && size >= minGather {
		n, err = c.socket.TryWrite(append([][]byte{c.out.head}, all...)...)
	} else {
		n, err = c.socket.TryWrite(c.copiedLocked(all...))
	}
	if n == 0 {
		c.out = message{}
		return 0, err
	}
	return c.wroteLocked(n), err
}

// CloseWrite says with a Close frame that this side sends nothing more.
func (c *Conn) CloseWrite() error {
	c.mu.Lock()
	defer c.unlock()
	return c.sayCloseLocked()
}

// sayCloseLocked writes the Close frame, if it was not written and no message is incomplete. mu is
// held.
func (c *Conn) sayCloseLocked() error {
	if c.said || !c.out.isDone() {
		return nil
	}
	_, err := c.Conn.Write(c.closeFrameLocked())
	return err
}

// closeFrameLocked returns the Close frame. Nothing can be written after it.
func (c *Conn) closeFrameLocked() []byte {
	c.said = true
	c.asideMu.Lock()
	code := cmp.Or(c.closing, closeNormal)
	c.asideMu.Unlock()
	return c.controlFrameLocked(opClose, binary.BigEndian.AppendUint16(nil, uint16(code)))
}

// closeTimeout is how long it may take to write a Close frame and the bytes before it.
const closeTimeout = time.Second

// Close implements [net.Conn]. It does not block: the Close frame is written in the background.
func (c *Conn) Close() error {
	if c.beginClose() {
		go c.finish()
	}
	return nil
}

// Close implements [net.Conn]. It does not block: the Close frame is written if there is room for
// it. If another goroutine is writing, that goroutine closes the connection.
func (c *PromptConn) Close() error {
	if c.beginClose() && c.mu.TryLock() {
		if !c.said && c.out.isDone() {
			_, _ = c.socket.TryWrite(c.closeFrameLocked())
		}
		_ = c.Conn.Conn.Close()
		c.mu.Unlock()
	}
	return nil
}

// beginClose records that Close was called, and unblocks Read at once and Write after
// closeTimeout. It reports false if Close was called before.
func (c *Conn) beginClose() bool {
	if c.closed.Swap(true) {
		return false
	}
	_ = c.Conn.SetReadDeadline(time.Unix(1, 0))
	_ = c.Conn.SetWriteDeadline(time.Now().Add(closeTimeout))
	return true
}

// finish writes the Close frame and closes the connection. If mu is locked, it does nothing: the
// goroutine that unlocks mu calls finish again.
func (c *Conn) finish() {
	if c.mu.TryLock() {
		_ = c.sayCloseLocked()
		_ = c.Conn.Close()
		c.mu.Unlock()
	}
}

// unlock unlocks mu.
func (c *Conn) unlock() {
	c.mu.Unlock()
	if c.closed.Load() {
		c.finish()
	}
}

// Keep returns a function that makes copies of r, the request that has opened a WebSocket,
// without its body, its context and the header fields named in without. The function holds the
// header in one text: a map of 2,000 short fields takes twenty times as much memory, and a
// WebSocket may stay open for days.
func Keep(r *http.Request, without ...string) func() *http.Request {
	kept := r.WithContext(context.Background()) // r's own context ends, and would keep its server in memory
	kept.Body, kept.GetBody, kept.Header = http.NoBody, nil, nil
	var b []byte
	for name, values := range r.Header {
		if slices.Contains(without, name) {
			continue
		}
		for _, v := range values {
			b = appendText(appendText(b, name), v)
		}
	}
	packed := string(b)
	return func() *http.Request {
		r, url := *kept, *kept.URL
		r.URL, r.Header = &url, make(http.Header)
		for name, v, rest := "", "", packed; rest != ""; {
			name, rest = cutText(rest)
			v, rest = cutText(rest)
			r.Header[name] = append(r.Header[name], v)
		}
		return &r
	}
}

// appendText appends the length of a text, and the text.
func appendText(b []byte, text string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(text))), text...)
}

// cutText is the inverse of appendText.
func cutText(b string) (text, rest string) {
	n, size := binary.Uvarint([]byte(b[:min(len(b), binary.MaxVarintLen64)]))
	b = b[size:]
	return b[:n], b[n:]
}
