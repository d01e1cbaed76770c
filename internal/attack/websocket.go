//go:build linux

package main

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"

	"github.com/nearcall/nearcall/internal/wire"
)

// Attacks over a WebSocket, with its frames and with nearcall's inside them.
var webSocketAttacks = []*attack{
	{
		name: "ws-streams-unread", path: overWS, full: 20_000, short: 4_000,
		what:   "%s server streams over a WebSocket, no credit given",
		before: "not measured",
		run: func(a *attacker) error {
			_, err := a.subscribe(a.count)
			return err
		},
	},
	{
		name: "ws-open-reset", path: overWS, full: 1_000_000, short: 100_000,
		what:   "%s calls opened and reset over a WebSocket",
		before: "not measured",
		run:    func(a *attacker) error { return a.openAndReset("HalfDuplexCall") },
	},
	{
		name: "ws-bytes", path: overWS, full: 8_000_000, short: 1_000_000,
		what:   "%s frames of a WebSocket with a byte each",
		before: "not measured",
		run: func(a *attacker) error {
			// Inside them are frames of an extension, which the server ignores.
			ignored := frame(nil, 0x40, 0, make([]byte, 60_000)...)
			return a.webSocketFrames(func(b []byte, i int) []byte {
				return webSocketFrame(b, webSocketBinary, ignored[i%len(ignored)])
			})
		},
	},
	{
		name: "ws-empty", path: overWS, full: 8_000_000, short: 1_000_000,
		what:   "%s empty continuation frames of a message",
		before: "not measured",
		run: func(a *attacker) error {
			return a.webSocketFrames(func(b []byte, i int) []byte {
				if i == 0 {
					return webSocketFrame(b, webSocketBinary&^webSocketFinal)
				}
				return webSocketFrame(b, 0)
			})
		},
	},
	{
		name: "ws-pings", path: overWS, full: 8_000_000, short: 1_000_000,
		what:   "%s PINGs of a WebSocket, of 0 and 125 bytes alternately",
		before: "not measured",
		run: func(a *attacker) error {
			payload := make([]byte, 125)
			return a.webSocketFrames(func(b []byte, i int) []byte {
				return webSocketFrame(b, webSocketPing, payload[:i%2*125]...)
			})
		},
	},
	{
		name: "ws-claims", path: overWS, full: 5_000, short: 500,
		what:   "%s connections with the header of a frame of 2^63-1 bytes, and one byte",
		before: "not measured",
		known:  &excuse{each: 64 << 10, why: "a connection takes some 30 kB of itself; how many there are is for the listener to limit"},
		run: func(a *attacker) error {
			claim := binary.BigEndian.AppendUint64([]byte{webSocketBinary, webSocketMasked | 127}, math.MaxInt64)
			return a.webSockets(append(claim, 0, 0, 0, 0, wire.Magic[0]))
		},
	},
	{
		name: "ws-silent", path: overWS, full: 5_000, short: 500,
		what:   "%s WebSockets that are opened and no more",
		before: "not measured",
		known:  &excuse{each: 64 << 10, why: "as above"},
		run:    func(a *attacker) error { return a.webSockets(nil) },
	},
}

// The first two bytes of a frame. The frames of the attacks are masked with zero, which
// costs the attacker nothing.
const (
	webSocketFinal  = 0x80
	webSocketBinary = webSocketFinal | 2
	webSocketPing   = webSocketFinal | 9
	webSocketMasked = 0x80
)

// webSocketFrame appends a frame with a short payload.
func webSocketFrame(b []byte, first byte, payload ...byte) []byte {
	return append(append(b, first, webSocketMasked|byte(len(payload)), 0, 0, 0, 0), payload...)
}

// upgrade opens a WebSocket. If inside, what the peer writes becomes the payload of frames,
// and it reads payloads; otherwise it writes and reads bare bytes.
func (a *attacker) upgrade(inside bool) (*peer, error) {
	p, err := a.dial(overTCP)
	if err != nil {
		return nil, err
	}
	if err := p.write([]byte("GET /calls HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n" +
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: nearcall.v1\r\n\r\n")); err != nil {
		return nil, err
	}
	conn := p.conn.(net.Conn)
	in := bufio.NewReader(conn)
	answer, err := http.ReadResponse(in, nil)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode != http.StatusSwitchingProtocols {
		return nil, fmt.Errorf("the server opens no WebSocket: %s", answer.Status)
	}
	if inside {
		p.conn = &webSocketConn{Conn: conn, in: in}
	}
	return p, nil
}

// webSocketFrames sends a.count frames on a WebSocket, whose session has begun.
func (a *attacker) webSocketFrames(next func(b []byte, i int) []byte) error {
	p, err := a.upgrade(false)
	if err != nil {
		return err
	}
	p.drain()
	hello := wire.AppendHello([]byte(wire.Magic), &wire.Hello{
		Version: wire.Version, Stream: wire.MinWindow, Connection: wire.MinWindow, Block: wire.MinBlock,
	})
	if err := p.write(webSocketFrame(nil, webSocketBinary, hello...)); err != nil {
		return err
	}
	i := -1
	return p.repeat(a.count, func(b []byte) []byte {
		i++
		return next(b, i)
	})
}

// webSockets opens a.count WebSockets, and sends b on each.
func (a *attacker) webSockets(b []byte) error {
	for range a.count {
		p, err := a.upgrade(false)
		if err != nil {
			return err
		}
		if err := p.write(b); err != nil {
			return err
		}
	}
	return nil
}

// A webSocketConn carries bytes in the frames of a WebSocket.
type webSocketConn struct {
	net.Conn
	in   *bufio.Reader
	left uint64 // of the frame that is being read
}

// Write sends b as one frame.
func (c *webSocketConn) Write(b []byte) (int, error) {
	head := binary.BigEndian.AppendUint64([]byte{webSocketBinary, webSocketMasked | 127}, uint64(len(b)))
	if _, err := c.Conn.Write(append(head, 0, 0, 0, 0)); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

// Read reads payload. It does not tell kinds of frames apart: the server sends binary ones
// until it closes the WebSocket.
func (c *webSocketConn) Read(b []byte) (int, error) {
	for c.left == 0 {
		var head [2]byte
		if _, err := io.ReadFull(c.in, head[:]); err != nil {
			return 0, err
		}
		c.left = uint64(head[1])
		extended := map[byte]int{126: 2, 127: 8}[head[1]]
		var size [8]byte
		if _, err := io.ReadFull(c.in, size[8-extended:]); err != nil {
			return 0, err
		}
		if extended > 0 {
			c.left = binary.BigEndian.Uint64(size[:])
		}
	}
	n, err := c.in.Read(b[:min(uint64(len(b)), c.left)])
	c.left -= uint64(n)
	return n, err
}
