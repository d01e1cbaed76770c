package quic

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	q "github.com/quic-go/quic-go"
	"google.golang.org/grpc/metadata"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/testing/attack"
	"github.com/nearcall/nearcall/internal/wire"
)

func init() { runTests = attacks.Main }

func TestAttacks(t *testing.T) { attacks.Test(t) }

const onQUIC attack.Path = "quic"

var (
	attackerTLS = &tls.Config{InsecureSkipVerify: true, NextProtos: []string{alpn}}

	// attacks are those with calls and connections. Attacks with frames of QUIC's own are for quic-go to withstand.
	attacks = &attack.Program{
		Table:  "../docs/results/attacks-quic.csv",
		Listen: func(string) map[attack.Path]string { return map[attack.Path]string{onQUIC: "quic:127.0.0.1:0"} },
		Server: []nearcall.ServerOption{nearcall.Creds(nearcall.NewTLS(first(testTLS())))},
		Client: []nearcall.DialOption{nearcall.WithTransportCredentials(nearcall.NewTLS(&tls.Config{InsecureSkipVerify: true}))},
		Forget: 30 * time.Second, // the idle timeout
		Probe:  ordinaryCall,
		Declines: func(err error) bool {
			_, app := errors.AsType[*q.ApplicationError](err)
			_, transport := errors.AsType[*q.TransportError](err)
			_, stream := errors.AsType[*q.StreamError](err)
			_, idle := errors.AsType[*q.IdleTimeoutError](err)
			return app || transport || stream || idle
		},
		Attacks: []*attack.Attack{
			attackOn("noise", 400_000, 50_000, "%s datagrams of random bytes", nil, noise),
			attackOn("handshakes-half", 2_000, 300, "%s handshakes that stop after the client's first packets", nil, halfHandshakes),
			attackOn("handshakes", 1_000, 100, "%s connections that end after the handshake", nil,
				connecting(func(_ *attack.Attacker, p *attackConn) error { return p.conn.CloseWithError(0, "") })),
			attackOn("connections-silent", 1_000, 100, "%s connections that do not say HELLO", aConnection,
				connecting(func(*attack.Attacker, *attackConn) error { return nil })),
			attackOn("connections-idle", 1_000, 100, "%s connections that say HELLO and no more", aConnection,
				connecting(func(_ *attack.Attacker, p *attackConn) error { return p.greet() })),
			attackOn("control", 200_000, 20_000, "%s DRAINs with 1,000 calls open, and as many frames of an extension", nil, controlFrames),

			attackOn("calls-byte", 20_000, 1_000, "%s calls of which only one byte arrives", aCall, leaving([]byte{1})),
			attackOn("calls-open", 20_000, 1_000, "%s calls opened and left", aCall, leaving(openingOf("HalfDuplexCall", nil))),
			attackOn("calls-unread", 4_000, 1_000, "%s server streams, no credit given", aCall, leaving(requestTo("StreamingOutputCall"))),
			attackOn("calls-unread-many", 100, 5, "%s connections with 100 server streams each, no credit given",
				&attack.Excuse{Each: 100 * aCall.Each, Why: aCall.Why},
				connecting(func(a *attack.Attacker, p *attackConn) error {
					err := p.greet()
					for i := 0; i < 100 && err == nil; i++ {
						_, err = p.call(a, requestTo("StreamingOutputCall"))
					}
					return err
				})),
			attackOn("open-reset", 200_000, 5_000, "%s calls opened and reset", nil, openingAndResetting(openingOf("HalfDuplexCall", nil), 20, 0)),
			attackOn("open-reset-later", 100_000, 5_000, "%s calls opened, 500 at a time, and reset when their handlers run", nil,
				openingAndResetting(openingOf("HalfDuplexCall", nil), 500, time.Millisecond)),
			attackOn("open-reset-busy", 10_000, 3_000, "%s calls opened and reset whose handlers take 2 s", nil,
				openingAndResetting(openingOf("StreamingInputCall", nil), 20, 0)),
			attackOn("open-stop", 200_000, 5_000, "%s small calls whose replies are stopped at once", nil, openingAndStopping),
			attackOn("open-reset-head", 200_000, 5_000, "%s calls reset before their head is whole", nil, openingAndResetting([]byte{1}, 20, 0)),

			attackOn("headers-entries", 6, 2, "%s calls, left open, whose headers of 8 MiB are entries with an empty key and value", nil,
				func(a *attack.Attacker) error {
					return leaveOpen(a, openingOf("HalfDuplexCall", metadata.MD{"k": make([]string, largestBlock/33)}))
				}),
			attackOn("headers-unfinished", 50, 1, "%s calls whose headers of 16 MiB do not end", nil,
				func(a *attack.Attacker) error {
					const part = 60_000
					return leaveOpen(a, bytes.Repeat(frame(wire.KindPart, 1, strings.Repeat("p", part)), largestBlock/part))
				}),
			// A size is 7 bits a byte, the lowest first.
			attackOn("claims", 1_000, 1_000, "%s calls that claim a message of 4 MiB and send a byte of it", nil,
				leaving(append(openingOf("UnaryCall", nil), frame(wire.KindStream|wire.FlagMessage|wire.FlagMore, 1, "\xff\xff\xff\x01\x00")...))),
			attackOn("messages-empty", 100, 20, "%s calls full of empty messages, which nobody receives", nil, filling(nil)),
			attackOn("messages-byte", 100, 20, "%s calls full of messages of a byte, which nobody receives", nil, filling([]byte{0})),
		},
	}

	aConnection = &attack.Excuse{
		Each: 96 << 10,
		Why:  "a connection takes quic-go some 80 kB; how many there are is for the listener to limit",
	}
	aCall = &attack.Excuse{
		Each: 28 << 10,
		Why:  "a call takes some 12 to 20 kB of itself; MaxConcurrentStreams limits those of a connection, and how many connections there are is for the listener to limit",
	}
)

func attackOn(name string, full, short int, what string, known *attack.Excuse, run func(*attack.Attacker) error) *attack.Attack {
	before := "not measured"
	if name == "control" {
		before = "1.3 s of CPU"
	}
	return &attack.Attack{Name: name, Path: onQUIC, Full: full, Short: short, What: what, Before: before, Known: known, Run: run}
}

func first[A, B any](a A, _ B) A { return a }

// largestBlock is the largest header block that servers accept by default, less what a call's header
// needs beside its metadata.
const largestBlock = 16<<20 - 64<<10

// An attackConn is the attacker's end of a connection. It speaks QUIC with quic-go, and writes whatever
// frames an attack needs.
type attackConn struct {
	conn    *q.Conn
	control *q.SendStream
}

// An attackSocket counts what it sends.
type attackSocket struct {
	net.PacketConn
	a *attack.Attacker
}

func (s attackSocket) WriteTo(b []byte, to net.Addr) (int, error) {
	n, err := s.PacketConn.WriteTo(b, to)
	s.a.Sent.Add(int64(n))
	return n, err
}

// attackFrom opens a socket, and returns the server's address as well.
func attackFrom(a *attack.Attacker) (s attackSocket, to *net.UDPAddr, err error) {
	pc, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return s, nil, err
	}
	a.Hold(pc)
	to, err = net.ResolveUDPAddr("udp", strings.TrimPrefix(a.Target(), "quic:"))
	return attackSocket{pc, a}, to, err
}

// attackShared is the socket of an attacker's connections, as there may be thousands.
var attackShared sharedSocket

type sharedSocket struct {
	mu     sync.Mutex
	tr     *q.Transport
	server *net.UDPAddr
}

func (s *sharedSocket) from(a *attack.Attacker) (*q.Transport, *net.UDPAddr, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tr == nil {
		socket, to, err := attackFrom(a)
		if err != nil {
			return nil, nil, err
		}
		s.tr, s.server = &q.Transport{Conn: socket}, to
	}
	return s.tr, s.server, nil
}

// connect makes the handshake of QUIC, and sends nothing more. It gives little credit.
func connect(a *attack.Attacker) (*attackConn, error) {
	tr, to, err := attackShared.from(a)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithDeadline(context.Background(), a.Until)
	defer cancel()
	conn, err := tr.Dial(ctx, to, attackerTLS, attackerConfig)
	if err != nil {
		return nil, err
	}
	a.Hold(conn)
	return &attackConn{conn: conn}, nil
}

var attackerConfig = &q.Config{
	InitialStreamReceiveWindow: 1 << 10, MaxStreamReceiveWindow: 1 << 10,
	InitialConnectionReceiveWindow: 1 << 10, MaxConnectionReceiveWindow: 1 << 10,
	MaxIdleTimeout: 10 * time.Minute, MaxIncomingUniStreams: 1,
}

// enter connects and greets.
func enter(a *attack.Attacker) (*attackConn, error) {
	p, err := connect(a)
	if err != nil {
		return nil, err
	}
	return p, p.greet()
}

// greet opens the control stream and sends HELLO.
func (p *attackConn) greet() (err error) {
	if p.control, err = p.conn.OpenUniStream(); err != nil {
		return err
	}
	_, err = p.control.Write(wire.AppendHello(nil, &wire.Hello{
		Version: wire.Version, Stream: wire.MinWindow, Connection: wire.MinWindow, Block: wire.MinBlock,
	}))
	return err
}

// call opens a call, waiting while the server lets no more be opened, and sends b on it.
func (p *attackConn) call(a *attack.Attacker, b []byte) (*q.Stream, error) {
	ctx, cancel := context.WithDeadline(context.Background(), a.Until)
	defer cancel()
	st, err := p.conn.OpenStreamSync(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = os.ErrDeadlineExceeded // the server lets no more be opened
	}
	if err != nil {
		return nil, err
	}
	_ = st.SetDeadline(a.Until)
	_, err = st.Write(b)
	return st, err
}

// openingOf returns the frames that begin a call of the test service.
func openingOf(method string, md metadata.MD) []byte {
	return literal(&wire.Step{Open: &link.CallHeader{
		Method: "/grpc.testing.TestService/" + method, Profile: &link.Profile{Authority: "localhost", UserAgent: "attack"}, Metadata: md,
	}})
}

// requestTo returns the frames of a call with an empty message.
func requestTo(method string) []byte {
	return append(openingOf(method, nil), literal(&wire.Step{HasMessage: true, HalfClose: true})...)
}

func literal(step *wire.Step) (b []byte) {
	step.Stream = 1
	e := wire.Encoder{Literal: true}
	for !step.Done() {
		b, _ = e.Append(b, step, 1<<40)
	}
	return b
}

// ordinaryCall is the Probe of the attacks.
func ordinaryCall(a *attack.Attacker) error {
	p, err := enter(a)
	if err != nil {
		return err
	}
	defer func() { _ = p.conn.CloseWithError(0, "") }()
	st, err := p.call(a, requestTo("EmptyCall"))
	if err != nil {
		return err
	}
	b, err := io.ReadAll(st)
	var d wire.Decoder
	for err == nil {
		var f wire.Frame
		var n int
		if f, n, err = wire.Next(b); err != nil || n == 0 {
			break
		}
		b = b[n:]
		got, wrong := d.Stream(f, nil, false)
		if wrong == nil && got.End != nil {
			return got.End.Status.Err()
		}
		err = wrong
	}
	return fmt.Errorf("an ordinary call by the attacker's own means has no end: %q, %w", b, err)
}

// noise sends datagrams that look like packets of either kind.
func noise(a *attack.Attacker) error {
	s, to, err := attackFrom(a)
	if err != nil {
		return err
	}
	r := rand.New(rand.NewPCG(1, 1))
	prepared := make([][]byte, 100)
	for i := range prepared {
		prepared[i] = make([]byte, 1+r.IntN(1400))
		for j := range prepared[i] {
			prepared[i][j] = byte(r.Uint32())
		}
	}
	for i := range a.Count {
		if _, err := s.WriteTo(prepared[i%len(prepared)], to); err != nil {
			return err
		}
	}
	return nil
}

// halfHandshakes sends the first flight of many handshakes, each from its own address.
func halfHandshakes(a *attack.Attacker) error {
	return together(a, 50, func() error {
		s, to, err := attackFrom(a)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
		defer cancel()
		tr := &q.Transport{Conn: deafConn{s}}
		_, err = tr.Dial(ctx, to, attackerTLS, attackerConfig)
		_ = tr.Close()
		_ = s.Close()
		if !errors.Is(err, context.DeadlineExceeded) {
			return errors.New("a handshake was complete although the client was deaf")
		}
		return nil
	})
}

// together calls the function do a.Count times, from several goroutines.
func together(a *attack.Attacker, goroutines int, do func() error) error {
	var all sync.WaitGroup
	errs := make([]error, goroutines)
	for i := range goroutines {
		all.Go(func() {
			for n := i; n < a.Count && errs[i] == nil; n += goroutines {
				errs[i] = do()
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// connecting returns an attack that makes many connections, and calls the function then for each.
func connecting(then func(*attack.Attacker, *attackConn) error) func(*attack.Attacker) error {
	return func(a *attack.Attacker) error {
		return together(a, 10, func() error {
			p, err := connect(a)
			if err != nil {
				return err
			}
			return then(a, p)
		})
	}
}

// controlFrames sends frames on the control stream while calls are open.
func controlFrames(a *attack.Attacker) error {
	p, err := enter(a)
	for i := 0; i < mostCalls && err == nil; i++ {
		_, err = p.call(a, openingOf("HalfDuplexCall", nil))
	}
	if err != nil {
		return err
	}
	const each = 100
	extension := []byte{2, 0, 0x40, 0}
	b := bytes.Repeat(slices.Concat(wire.AppendDrain(nil, mostCalls), extension), each)
	_ = p.control.SetWriteDeadline(a.Until)
	for range a.Count / each {
		if _, err := p.control.Write(b); err != nil {
			if _, ended := errors.AsType[*q.ApplicationError](err); ended {
				return nil // by the server: the second DRAIN says nothing new
			}
			return err
		}
	}
	return nil
}

// mostCalls is how many calls a server lets a connection have open by default.
const mostCalls = 1000

func leaving(b []byte) func(*attack.Attacker) error {
	return func(a *attack.Attacker) error { return leaveOpen(a, b) }
}

// leaveOpen opens calls, as many on each connection as it may have, sends b on each, and reads
// nothing.
func leaveOpen(a *attack.Attacker, b []byte) error {
	var p *attackConn
	for i := range a.Count {
		var err error
		if i%mostCalls == 0 {
			p, err = enter(a)
		}
		if err == nil {
			_, err = p.call(a, b)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// filling returns an attack that fills the windows of calls.
func filling(message []byte) func(*attack.Attacker) error {
	return func(a *attack.Attacker) error {
		const window = 256 << 10 // of a call, by default
		one := literal(&wire.Step{HasMessage: true, Message: message})
		return leaveOpen(a, append(openingOf("HalfDuplexCall", nil), bytes.Repeat(one, window/2/len(one))...))
	}
}

// openingAndResetting returns an attack that opens calls and sends b on each. Whenever as many calls are
// open as some says, it waits for the time after and resets them. A reset discards bytes of its call that
// are not in a packet yet, so it waits even if after is 0.
func openingAndResetting(b []byte, some int, after time.Duration) func(*attack.Attacker) error {
	const code = q.StreamErrorCode(wire.ResetCancelled)
	return func(a *attack.Attacker) error {
		p, err := enter(a)
		if err != nil {
			return err
		}
		var opened []*q.Stream
		for range a.Count {
			st, err := p.call(a, b)
			if err != nil {
				return err
			}
			if opened = append(opened, st); len(opened) < some {
				continue
			}
			time.Sleep(after + 50*time.Microsecond) // quic-go sends on its own goroutine
			for _, st := range opened {
				st.CancelWrite(code)
				st.CancelRead(code)
			}
			opened = opened[:0]
		}
		return nil
	}
}

// openingAndStopping makes calls and does not let the server answer.
func openingAndStopping(a *attack.Attacker) error {
	p, err := enter(a)
	if err != nil {
		return err
	}
	b := requestTo("EmptyCall")
	for range a.Count {
		st, err := p.call(a, b)
		if err != nil {
			return err
		}
		_ = st.Close()
		st.CancelRead(q.StreamErrorCode(wire.ResetCancelled))
	}
	return nil
}
