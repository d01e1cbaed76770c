//go:build linux

package attack

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wire"
)

// A peer is the attacker's end of a connection. It writes whatever frames an attack needs,
// and reads no more than it must.
type peer struct {
	conn io.ReadWriteCloser
	sent *atomic.Int64 // bytes, shared by all peers
	enc  wire.Encoder
	last uint64 // the number of the last call

	unread  []byte
	greeted bool // the server's line has been read
}

// methods is the prefix of the service's methods.
const methods = "/grpc.testing.TestService/"

var profile = link.Profile{Authority: "localhost", UserAgent: "attack"}

// greet sends the line and HELLO. The server may then send stream bytes on each call and
// connection bytes in total before it needs credit.
func (p *peer) greet(stream, connection int64) error {
	return p.write(wire.AppendHello([]byte(wire.Magic), &wire.Hello{
		Version: wire.Version, Stream: stream, Connection: connection, Block: wire.MinBlock,
	}))
}

// write sends b, and counts the bytes that were accepted.
func (p *peer) write(b []byte) error {
	n, err := p.conn.Write(b)
	p.sent.Add(int64(n))
	return err
}

// A request is the start of a call.
type request struct {
	metadata metadata.MD
	message  bool // whether there is a message
	bytes    []byte
	ends     bool // no more messages follow
}

// open appends the first frame of a new call.
func (p *peer) open(b []byte, method string, r request) []byte {
	return p.openAs(&profile, b, method, r)
}

// openAs is open with a profile.
func (p *peer) openAs(profile *link.Profile, b []byte, method string, r request) []byte {
	p.last += 2
	if p.last == 2 {
		p.last = 1
	}
	step := wire.Step{
		Stream: p.last, Open: &link.CallHeader{Method: methods + method, Profile: profile, Metadata: r.metadata},
		HasMessage: r.message, Message: r.bytes, HalfClose: r.ends,
	}
	for !step.Done() {
		b, _ = p.enc.Append(b, &step, wire.MinWindow)
	}
	return b
}

// send appends a message to the last call that was opened.
func (p *peer) send(b, message []byte) []byte {
	step := wire.Step{Stream: p.last, HasMessage: true, Message: message}
	b, _ = p.enc.Append(b, &step, wire.MinWindow)
	return b
}

// drain reads and discards everything, in the background.
func (p *peer) drain() {
	go func() { _, _ = io.Copy(io.Discard, p.conn) }()
}

// call makes a call and waits for its end. It shows that the attacks' frames still follow
// the protocol: otherwise the server would seem to withstand every attack.
func (p *peer) call(method string, message []byte) error {
	if err := p.write(p.open(nil, method, request{message: true, bytes: message, ends: true})); err != nil {
		return err
	}
	return p.ended(p.last)
}

// ended reads until the call has ended, and returns its error.
func (p *peer) ended(stream uint64) error {
	var d wire.Decoder
	return p.frames(func(f wire.Frame) (done bool, err error) {
		switch {
		case f.Kind == wire.KindReset:
			code, text, _ := wire.ParseReset(f.Body)
			return true, fmt.Errorf("the server reset call %d: %d: %s", f.Stream, code, text)
		case !f.Kind.Stream() || f.Stream != stream:
			return false, nil
		}
		got, err := d.Stream(f, nil, false)
		if err != nil || got.End == nil {
			return err != nil, err
		}
		return true, got.End.Status.Err()
	})
}

// until reads until a frame of this kind arrives.
func (p *peer) until(kind wire.Kind) error {
	return p.frames(func(f wire.Frame) (bool, error) { return f.Kind == kind, nil })
}

// frames reads frames and passes them to tell until that is done.
func (p *peer) frames(tell func(wire.Frame) (done bool, err error)) error {
	buf := make([]byte, 64<<10)
	for {
		for {
			if !p.greeted && bytes.HasPrefix(p.unread, []byte(wire.Magic)) {
				p.unread, p.greeted = p.unread[len(wire.Magic):], true
			}
			if !p.greeted {
				break
			}
			f, n, err := wire.Next(p.unread)
			if err != nil {
				return err
			}
			if n == 0 {
				break
			}
			p.unread = p.unread[n:]
			if f.Kind == wire.KindBye {
				code, text, _ := wire.ParseBye(f.Body)
				return fmt.Errorf("the server ended the connection: %d: %s", code, text)
			}
			if done, err := tell(f); done {
				return err
			}
		}
		n, err := p.conn.Read(buf)
		if err != nil {
			return err
		}
		p.unread = append(p.unread, buf[:n]...)
	}
}

// frame appends a frame without any checks.
func frame(b []byte, kind wire.Kind, stream uint64, body ...byte) []byte {
	at := len(b)
	b = append(uint62(append(b, 0, 0, byte(kind)), stream), body...)
	n := len(b) - at - 2
	b[at], b[at+1] = byte(n), byte(n>>8)
	return b
}

// uint62 appends a number.
func uint62(b []byte, v uint64) []byte {
	for v >= 0x80 {
		b = append(b, byte(v)|0x80)
		v >>= 7
	}
	return append(b, byte(v))
}

// word appends a string.
func word(b []byte, s string) []byte { return append(uint62(b, uint64(len(s))), s...) }

// dialSocket dials a server's target over TCP or a unix socket.
func dialSocket(target string, until time.Time) (net.Conn, error) {
	network, address, ok := strings.Cut(target, ":")
	if !ok {
		return nil, errors.New("a target without a scheme: " + target)
	}
	if network == "shm" {
		network = "unix"
	}
	conn, err := (&net.Dialer{Deadline: until}).Dial(network, address)
	if err != nil {
		return nil, err
	}
	return conn, conn.SetWriteDeadline(until)
}

// probe makes an ordinary call with the attacks' own protocol code.
func probe(a *Attacker) error {
	p, err := a.dial(a.over)
	if err != nil {
		return err
	}
	defer p.conn.Close()
	if err := p.greet(wire.MinWindow, wire.MinWindow); err != nil {
		return err
	}
	if err := p.call("EmptyCall", nil); err != nil {
		return fmt.Errorf("an ordinary call by the attacker's own means: %w", err)
	}
	return nil
}

// dial connects without sending anything.
func (a *Attacker) dial(over Path) (*peer, error) {
	if over == overShm {
		r, err := dialRing(a.at[overShm], a.Until)
		if err != nil {
			return nil, err
		}
		a.Hold(r)
		return &peer{conn: r, sent: &a.Sent}, nil
	}
	if over == overWS {
		return a.upgrade(true)
	}
	conn, err := dialSocket(a.at[over], a.Until)
	if err != nil {
		return nil, err
	}
	a.Hold(conn)
	return &peer{conn: conn, sent: &a.Sent}, nil
}

// enter connects, greets with the smallest windows, and reads and discards everything.
func (a *Attacker) enter(over Path) (*peer, error) {
	p, err := a.dial(over)
	if err != nil {
		return nil, err
	}
	p.drain()
	return p, p.greet(wire.MinWindow, wire.MinWindow)
}

// repeat calls step n times, and writes what step has appended in large pieces.
func (p *peer) repeat(n int, step func(b []byte) []byte) error {
	const enough = 60 << 10
	b := make([]byte, 0, 2*enough)
	for range n {
		if b = step(b); len(b) > enough {
			if err := p.write(b); err != nil {
				return err
			}
			b = b[:0]
		}
	}
	return p.write(b)
}
