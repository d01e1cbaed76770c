package mux

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/message"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/wire"
)

// vectors reads a file of package wire's test vectors.
func vectors(t *testing.T, name string, into any) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("../wire/testdata", name))
	if err == nil {
		err = json.Unmarshal(b, into)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func fromHex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestSessionsTakePartInTheConversations plays each conversation of the test vectors twice: a session
// is the client or the server, and the other side is played from the vector.
func TestSessionsTakePartInTheConversations(t *testing.T) {
	files, err := filepath.Glob("../wire/testdata/conversations/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("there are no conversations: %v", err)
	}
	for _, file := range files {
		for _, own := range []string{"client", "server"} {
			name := filepath.Base(file)
			t.Run(strings.TrimSuffix(name, ".json")+", the "+own, func(t *testing.T) {
				var v struct {
					Said []struct {
						From  string
						Hex   string
						Frame *struct{ Hello *wire.Hello } // nil for the line
					}
				}
				vectors(t, filepath.Join("conversations", name), &v)
				synctest.Test(t, func(t *testing.T) {
					p := &part{t: t, own: own}
					for _, r := range v.Said {
						if r.From == own && r.Frame != nil && r.Frame.Hello != nil {
							p.start(r.Frame.Hello)
						}
					}
					for _, r := range v.Said {
						b := fromHex(t, r.Hex)
						if r.From != own {
							p.peer.write(b)
						}
						if r.Frame != nil {
							p.follow(r.From == own, b)
						}
					}
					p.compare()
				})
			})
		}
	}
}

// A part is the side of a conversation that a session plays.
type part struct {
	t        *testing.T
	own      string
	session  *Session
	peer     *raw
	calls    map[uint64]link.Stream // those of a session that is the client
	peers    wire.Decoder           // of the frames that the vector sends
	owns     wire.Decoder           // of those that the session must send
	message  map[uint64][]byte      // of a call, as far as the vector has said it
	receives map[uint64]chan []byte // the message that somebody waits for
	reset    map[uint64]bool        // calls that the client has reset
	want     []string               // what the session must send
}

func (p *part) start(h *wire.Hello) {
	p.calls, p.message, p.reset = make(map[uint64]link.Stream), make(map[uint64][]byte), make(map[uint64]bool)
	p.receives = make(map[uint64]chan []byte)
	o := Options{Client: p.own == "client", Config: configured(p.own == "client", func(c *options.Connections) {
		c.MaxStreams = uint32(h.Calls)
		c.StreamWindow = max(int(h.Stream), wire.MinWindow)
		c.ConnWindow = int(h.Connection)
	})}
	var w *witness
	if h.Features&wire.FeatureNoCalls == 0 {
		w = &witness{}
	}
	p.session, p.peer = lone(p.t, o, w, false)
}

// follow handles a frame of the conversation. For a frame of the session's own side, follow makes the session
// send the same frame, unless the session sends it unasked, as it does all control frames but the client's RESET.
func (p *part) follow(own bool, b []byte) {
	f, _, err := wire.Next(b)
	if err != nil {
		p.t.Fatal(err)
	}
	client := own == (p.own == "client")
	reset := f.Kind == wire.KindReset && client
	if reset {
		p.reset[f.Stream] = true
	}
	var rc wire.Received
	if f.Kind.Stream() {
		dec := &p.peers
		if own {
			dec = &p.owns
		}
		if rc, err = dec.Stream(f, nil, client); err != nil {
			p.t.Fatal(err)
		}
	}
	switch {
	case !own:
		p.receive(f.Stream, &rc)
		return
	case !client && p.reset[f.Stream]: // the answer and the RESET have crossed: the session knows already
		return
	case reset:
		p.calls[f.Stream].Abort(context.Canceled)
	case f.Kind == wire.KindDrain:
		if last, err := wire.ParseDrain(f.Body); err == nil && last == wire.NoLast {
			p.session.Drain()
		}
	case f.Kind.Stream():
		p.say(f.Stream, &rc)
	}
	p.want = append(p.want, steps(f)...)
	synctest.Wait()
}

// say sends what a frame says. It sends a message when its last piece comes.
func (p *part) say(id uint64, rc *wire.Received) {
	if rc.Open != nil {
		ctx, cancel := context.WithTimeout(p.t.Context(), time.Second) // it must not wait
		defer cancel()
		st, err := p.session.NewStream(ctx, rc.Open)
		if err != nil {
			p.t.Fatalf("call %d: %v", id, err)
		}
		p.calls[id] = st
	}
	p.message[id] = append(p.message[id], rc.Data...)
	f := &link.Frame{Header: rc.Header, EndSend: rc.HalfClose, End: rc.End}
	if f.HasMsg = (rc.Begins || rc.Goes) && !rc.More; f.HasMsg {
		f.Msg = message.EncodedBytes(p.message[id])
		delete(p.message, id)
	}
	st := p.call(id)
	if st == nil {
		p.t.Fatalf("call %d is not open; the session has sent %q", id, p.said())
	}
	if err := st.Send(f); err != nil {
		p.t.Errorf("call %d: %v", id, err)
	}
}

// receive receives a message of the peer. It waits from the first piece on: then the session grants what the message lacks.
func (p *part) receive(id uint64, rc *wire.Received) {
	if !rc.Begins && !rc.Goes {
		return
	}
	synctest.Wait()
	if st := p.call(id); rc.Begins && st != nil && !p.reset[id] {
		got := make(chan []byte, 1)
		p.receives[id] = got
		go func() {
			b, err := receive(st, math.MaxInt)
			if err != nil {
				p.t.Errorf("call %d: %v", id, err)
			}
			got <- b
		}()
		synctest.Wait()
	}
	p.message[id] = append(p.message[id], rc.Data...)
	if rc.More {
		return
	}
	if got := p.receives[id]; got != nil {
		if b := <-got; !bytes.Equal(b, p.message[id]) {
			p.t.Errorf("call %d: received %d bytes, want %d", id, len(b), len(p.message[id]))
		}
	}
	delete(p.receives, id)
	delete(p.message, id)
}

// call returns a call by its number, or nil if the session has refused it.
func (p *part) call(id uint64) link.Stream {
	if p.own == "client" {
		return p.calls[id]
	}
	p.session.mu.Lock()
	defer p.session.mu.Unlock()
	if st := p.session.streams[id]; st != nil {
		return st
	}
	return nil
}

// compare compares what the session has sent with the vector, apart from credit and HELLO.
func (p *part) compare() {
	if got := p.said(); !slices.Equal(got, p.want) {
		p.t.Errorf("the %s says\n%q, want\n%q", p.own, got, p.want)
	}
	empty(p.t, p.session)
}

// said returns what the session has sent of calls, and why it has ended the connection, if it has.
func (p *part) said() (all []string) {
	for _, f := range p.peer.frames() {
		all = append(all, steps(f)...)
		if f.Kind == wire.KindBye && f.Body[0] != byte(wire.ByeDone) {
			all = append(all, fmt.Sprintf("BYE, %q", f.Body[1:]))
		}
	}
	return all
}

// steps returns what a frame says of a call. Implementations may cut messages into other pieces.
func steps(f wire.Frame) (all []string) {
	if f.Kind == wire.KindReset {
		return []string{fmt.Sprintf("RESET %d, code %d", f.Stream, f.Body[0])}
	}
	if !f.Kind.Stream() {
		return nil
	}
	for _, s := range []struct {
		flag wire.Kind
		name string
	}{{wire.FlagHead, "HEAD"}, {wire.FlagMessage, "MESSAGE"}, {wire.FlagEnd, "END"}} {
		if f.Kind&s.flag != 0 {
			all = append(all, fmt.Sprint(s.name, " ", f.Stream))
		}
	}
	return all
}

// TestAReplyWithoutAHeader checks that a caller takes messages without a header before them, as the
// vector says: all of its frames, or only the last, which has the end beside the message.
func TestAReplyWithoutAHeader(t *testing.T) {
	var v struct {
		Hex    []string
		Frames []struct{ Bytes string } // a message each
	}
	vectors(t, "frames/headless-reply.json", &v)
	if len(v.Hex) != 2 || len(v.Frames) != 2 {
		t.Fatalf("the vector has %d frames, want 2", len(v.Hex))
	}
	for first := range v.Hex {
		t.Run(fmt.Sprint("from frame ", first), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, peer := met(t, Options{Client: true}, nil)
				st, err := s.NewStream(t.Context(), &link.CallHeader{Method: "/a/b", Profile: &link.Profile{}})
				if err != nil {
					t.Fatal(err)
				}
				synctest.Wait() // so that the call has its number
				for _, frame := range v.Hex[first:] {
					peer.write(fromHex(t, frame))
				}
				before := &link.Frame{} // it takes no message
				if err := st.Recv(before); err != nil || before.Header != nil {
					t.Errorf("before the message comes the header %v, %v", before.Header, err)
				}
				for _, f := range v.Frames[first:] {
					wants(t, st, fromHex(t, f.Bytes))
				}
				if n := len(peer.of(wire.KindReset)) + len(peer.of(wire.KindBye)); n > 0 {
					t.Errorf("the caller objects in %d frames", n)
				}
				empty(t, s)
			})
		})
	}
}
