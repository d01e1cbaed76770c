//go:build linux

package attack

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
var webSocketAttacks = []*Attack{
	{
		Name: "ws-streams-unread", Path: overWS, Full: 20_000, Short: 4_000,
		What:   "%s server streams over a WebSocket, no credit given",
		Before: "not measured",
		Known:  handlersBegin,
		Run: func(a *Attacker) error {
			_, err := a.subscribe(a.Count)
			return err
		},
	},
	{
		Name: "ws-open-reset", Path: overWS, Full: 1_000_000, Short: 100_000,
		What:   "%s calls opened and reset over a WebSocket",
		Before: "not measured",
		Run:    func(a *Attacker) error { return a.openAndReset("HalfDuplexCall") },
	},
	{
		Name: "ws-bytes", Path: overWS, Full: 8_000_000, Short: 1_000_000,
		What:   "%s frames of a WebSocket with a byte each",
		Before: "not measured",
		Run: func(a *Attacker) error {
			// Inside them are frames of an extension, which the server ignores.
			ignored := frame(nil, 0x40, 0, make([]byte, 60_000)...)
			return a.webSocketFrames(func(b []byte, i int) []byte {
				return webSocketFrame(b, webSocketBinary, ignored[i%len(ignored)])
			})
		},
	},
	{
		Name: "ws-empty", Path: overWS, Full: 8_000_000, Short: 1_000_000,
		What:   "%s empty continuation frames of a message",
		Before: "not measured",
		Run: func(a *Attacker) error {
			return a.webSocketFrames(func(b []byte, i int) []byte {
				if i == 0 {
					return webSocketFrame(b, webSocketBinary&^webSocketFinal)
				}
				return webSocketFrame(b, 0)
			})
		},
	},
	{
		Name: "ws-pings", Path: overWS, Full: 8_000_000, Short: 1_000_000,
		What:   "%s PINGs of a WebSocket, of 0 and 125 bytes alternately",
		Before: "not measured",
		Run: func(a *Attacker) error {
			payload := make([]byte, 125)
			return a.webSocketFrames(func(b []byte, i int) []byte {
				return webSocketFrame(b, webSocketPing, payload[:i%2*125]...)
			})
		},
	},
	{
		Name: "ws-claims", Path: overWS, Full: 5_000, Short: 200,
		What:   "%s connections with the header of a frame of 2^63-1 bytes, and one byte",
		Before: "not measured",
		Known:  &Excuse{Each: 64 << 10, Why: "a connection takes some 30 kB of itself; how many there are is for the listener to limit"},
		Run: func(a *Attacker) error {
			claim := binary.BigEndian.AppendUint64([]byte{webSocketBinary, webSocketMasked | 127}, math.MaxInt64)
			return a.webSockets(append(claim, 0, 0, 0, 0, wire.Magic[0]))
		},
	},
	{
		Name: "ws-silent", Path: overWS, Full: 5_000, Short: 200,
		What:   "%s WebSockets that are opened and no more",
		Before: "not measured",
		Known:  &Excuse{Each: 64 << 10, Why: "as above"},
		Run:    func(a *Attacker) error { return a.webSockets(nil) },
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
func (a *Attacker) upgrade(inside bool) (*peer, error) {
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

// webSocketFrames sends a.Count frames on a WebSocket, whose session has begun.
func (a *Attacker) webSocketFrames(next func(b []byte, i int) []byte) error {
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
	return p.repeat(a.Count, func(b []byte) []byte {
		i++
		return next(b, i)
	})
}

// webSockets opens a.Count WebSockets, and sends b on each.
func (a *Attacker) webSockets(b []byte) error {
	for range a.Count {
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
