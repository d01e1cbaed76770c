package quic

import (
	"context"
	"encoding/hex"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
	"testing/synctest"

	q "github.com/quic-go/quic-go"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/registry"
	"github.com/nearcall/nearcall/internal/testing/transporttest"
	"github.com/nearcall/nearcall/internal/wire"
)

// head returns the frame that opens a call, without or with its end.
func head(end bool) []byte {
	e := wire.Encoder{Literal: true}
	step := wire.Step{Stream: 1, Open: &link.CallHeader{Method: "/a/b", Profile: &link.Profile{}}, HalfClose: end}
	b, _ := e.Append(nil, &step, math.MaxInt)
	return b
}

// frame returns a frame with the given kind, stream and body.
func frame(kind wire.Kind, stream byte, body string) []byte {
	n := 2 + len(body)
	return append([]byte{byte(n), byte(n >> 8), byte(kind), stream}, body...)
}

// What breaks a rule on a call's stream ends that call, and no other.
func TestWrongFramesEndTheirCall(t *testing.T) {
	message := func(n int) []byte { return frame(wire.KindStream|wire.FlagMessage, 1, strings.Repeat("x", n)) }
	for name, send := range map[string][][]byte{
		"no head":                  {message(3)},
		"two heads":                {head(false), head(false)},
		"a message after the end":  {head(false), frame(wire.KindStream|wire.FlagEnd, 1, "x")},
		"another stream":           {head(false), frame(wire.KindStream|wire.FlagMessage, 3, "x")},
		"no stream":                {frame(wire.KindHello, 0, "x")},
		"a frame of no kind":       {head(false), frame(0x0a, 1, "")},
		"a control frame":          {head(false), frame(wire.KindPing, 0, "12345678")},
		"a frame of no length":     {head(false), {0, 0}},
		"a piece of nothing":       {head(false), frame(wire.KindStream|wire.FlagPiece, 1, "x")},
		"the end within a message": {head(false), frame(wire.KindStream|wire.FlagMessage|wire.FlagMore, 1, "\x09x"), frame(wire.KindStream|wire.FlagEnd, 1, "")},
		"a frame between parts":    {frame(wire.KindPart, 1, "x"), frame(wire.KindReset, 1, "\x00")},
		"a new name is used again": {head(false), frame(wire.KindStream|wire.FlagHead, 1, "\x07")},
		"FIN without the end":      {head(false)},
		"nothing but FIN":          {},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				accepted := make(transporttest.Accepter, 2)
				n := newNetwork(t, &registry.Settings{}, func(link.Session) link.Acceptor { return accepted })
				c := n.dial(t, &registry.Settings{})
				qs, err := c.conn.OpenStream()
				if err != nil {
					t.Fatal(err)
				}
				for _, b := range send {
					if _, err := qs.Write(b); err != nil {
						break
					}
					synctest.Wait()
				}
				_ = qs.Close()
				b, err := io.ReadAll(qs)
				told := err == nil && len(b) > 4 && wire.Kind(b[2]) == wire.KindReset
				reset, _ := errors.AsType[*q.StreamError](err)
				if !told && (reset == nil || reset.ErrorCode != q.StreamErrorCode(wire.ResetProtocol)) {
					t.Errorf("the peer was told %s (%v), want RESET with code 4", hex.EncodeToString(b), err)
				}
				if told {
					if code, text, _ := wire.ParseReset(b[4:]); code != wire.ResetProtocol || text == "" {
						t.Errorf("RESET %d %q", code, text)
					}
				}
				if _, err := c.NewStream(t.Context(), &link.CallHeader{Method: "/a/b", Profile: &link.Profile{}}); err != nil {
					t.Errorf("the next call: %v", err)
				}
			})
		})
	}
}

// What breaks a rule on the control stream ends the connection.
func TestWrongControlFramesEndTheConnection(t *testing.T) {
	hello := wire.AppendHello(nil, &wire.Hello{Version: 1, Stream: wire.MinWindow, Connection: wire.MinWindow, Block: wire.MinBlock})
	for name, send := range map[string][]byte{
		"no HELLO":      wire.AppendDrain(nil, 0),
		"two HELLOs":    append(hello[:len(hello):len(hello)], hello...),
		"a call":        append(hello[:len(hello):len(hello)], head(true)...),
		"BYE":           wire.AppendBye(hello[:len(hello):len(hello)], 0, ""),
		"a long frame":  append(hello[:len(hello):len(hello)], frame(0x40, 0, strings.Repeat("x", 2000))...),
		"a short HELLO": frame(wire.KindHello, 0, "\x01"),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork(t, &registry.Settings{}, func(link.Session) link.Acceptor { return make(transporttest.Accepter, 1) })
				_, config := testTLS()
				pc, err := n.dialer(t, &registry.Settings{}).listen()
				if err != nil {
					t.Fatal(err)
				}
				tr := &q.Transport{Conn: pc}
				conn, err := tr.Dial(t.Context(), n.server, secured(config), nil)
				if err != nil {
					t.Fatal(err)
				}
				control, err := conn.OpenUniStream()
				if err != nil {
					t.Fatal(err)
				}
				_, _ = control.Write(send)
				<-conn.Context().Done()
				app, ok := errors.AsType[*q.ApplicationError](context.Cause(conn.Context()))
				if !ok || !app.Remote || app.ErrorCode != q.ApplicationErrorCode(wire.ByeProtocol) || app.ErrorMessage == "" {
					t.Errorf("the connection ended with %v, want code 1 and a text", context.Cause(conn.Context()))
				}
				_ = tr.Close()
				_ = pc.Close()
			})
		})
	}
}
