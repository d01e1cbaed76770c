package wire

import (
	"bytes"
	"encoding/hex"
	"testing"

	"google.golang.org/grpc/metadata"

	"github.com/nearcall/nearcall/internal/link"
)

// A remark is one frame of a conversation, or the first line of a side.
type remark struct {
	From  string   `json:"from"`
	Hex   string   `json:"hex"`
	Frame *meaning `json:"frame,omitempty"` // nil for the first line

	// The credit that each side has left after it, in bytes.
	Client *left `json:"client,omitempty"`
	Server *left `json:"server,omitempty"`
}

type left struct {
	Connection int64           `json:"connection"`
	Calls      map[int64]int64 `json:"calls,omitempty"` // by stream id
}

// A talker is one side of a conversation. It sends what its credit allows.
type talker struct {
	name  string
	hello Hello
	enc   Encoder
	dec   Decoder // for what it receives
	parts map[uint64][]byte
	left
	perCall int64 // credit of each new call
}

// A conversation is what both sides send, with their credit after each frame.
type conversation struct {
	t      *testing.T
	client *talker
	server *talker
	About  string   `json:"about"`
	Said   []remark `json:"said"`
}

func (c *conversation) other(who *talker) *talker {
	if who == c.client {
		return c.server
	}
	return c.client
}

// note records the frames in b, which who sent, and updates the peer's credit.
func (c *conversation) note(who *talker, b []byte) {
	peer := c.other(who)
	for len(b) > 0 {
		f, n, err := Next(b)
		if err != nil || n == 0 {
			c.t.Fatalf("%d, %v", n, err)
		}
		m := say(c.t, &peer.dec, f, peer.parts, who == c.client)
		switch f.Kind {
		case KindHello:
			h := m.Hello
			peer.Connection += h.Connection - MinWindow
			for id := range peer.Calls {
				peer.Calls[id] += h.Stream - MinWindow
			}
			peer.perCall = h.Stream
		case KindCredit:
			if f.Stream == 0 {
				peer.Connection += int64(m.N)
			} else {
				peer.Calls[int64(f.Stream)] += int64(m.N)
			}
		}
		c.remember(who, b[:n], &m)
		b = b[n:]
	}
}

func (c *conversation) remember(who *talker, b []byte, m *meaning) {
	snapshot := func(t *talker) *left {
		l := left{Connection: t.Connection, Calls: make(map[int64]int64)}
		for id, n := range t.Calls {
			l.Calls[id] = n
		}
		return &l
	}
	c.Said = append(c.Said, remark{From: who.name, Hex: hex.EncodeToString(b), Frame: m, Client: snapshot(c.client), Server: snapshot(c.server)})
}

func (c *conversation) greet(who *talker) {
	c.remember(who, []byte(Magic), nil)
	c.note(who, AppendHello(nil, &who.hello))
}

// send sends as much of s as the credit allows.
func (c *conversation) send(who *talker, s *Step) {
	id := int64(s.Stream)
	for !s.Done() {
		if _, known := who.Calls[id]; !known {
			who.Calls[id] = who.perCall
		}
		b, cost := who.enc.Append(nil, s, int(min(who.Connection, who.Calls[id])))
		if len(b) == 0 {
			return
		}
		who.Connection -= int64(cost)
		who.Calls[id] -= int64(cost)
		if who.Connection < 0 || who.Calls[id] < 0 {
			c.t.Fatalf("%s sends more than it has credit for: %+v", who.name, who.left)
		}
		c.note(who, b)
	}
}

// over ends the call on both sides.
func (c *conversation) over(id int64) {
	delete(c.client.Calls, id)
	delete(c.server.Calls, id)
}

// TestAConversationWithCredit also writes a test vector: a conversation in which a
// message waits twice, for the peer's HELLO and for credit.
func TestAConversationWithCredit(t *testing.T) {
	talk := func(name string, h Hello) *talker {
		return &talker{name: name, hello: h, parts: make(map[uint64][]byte), perCall: MinWindow,
			left: left{Connection: MinWindow, Calls: make(map[int64]int64)}}
	}
	c := &conversation{t: t,
		About: "The client sends a message of 100,000 bytes before it knows the server's windows; the server answers with a small one; " +
			"a second call is given up by its caller. client and server say what credit each has left to send messages with, after the frame.",
		client: talk("client", Hello{Version: 1, Stream: MinWindow, Connection: MinWindow, Block: MinBlock}),
		server: talk("server", Hello{Version: 1, Stream: 1 << 17, Connection: 80_000, Calls: 100, Block: 1 << 20}),
	}
	c.greet(c.client)
	request := &Step{Stream: 1, Open: open("/shop.Shop/Import", nil), HasMessage: true, Message: bytes.Repeat([]byte{'.'}, 100_000), HalfClose: true}
	c.send(c.client, request)
	if request.Done() || c.client.Connection > 0 {
		t.Fatalf("before HELLO %+v is left", c.client.left)
	}
	c.greet(c.server)
	c.send(c.client, request) // up to the connection's window
	if request.Done() || c.client.Connection > 0 || c.client.Calls[1] == 0 {
		t.Fatalf("after HELLO %+v is left", c.client.left)
	}
	c.note(c.server, AppendCredit(nil, 0, 80_000)) // the receiver has stored the bytes that have arrived
	c.send(c.client, request)
	if !request.Done() {
		t.Fatal("the message is not sent")
	}
	c.send(c.client, &Step{Stream: 3, Open: open("/shop.Shop/Watch", nil), HalfClose: true, HasMessage: true})
	c.send(c.server, &Step{Stream: 1, Header: metadata.MD{}, HasMessage: true, Message: []byte("done"), End: &link.End{}})
	c.over(1)
	c.send(c.server, &Step{Stream: 3, Header: metadata.MD{}, HasMessage: true, Message: []byte("news")})
	c.note(c.client, AppendReset(nil, 3, ResetCancelled, ""))
	c.over(3)
	c.note(c.client, AppendDrain(nil, 0))
	c.note(c.client, AppendBye(nil, ByeDone, ""))

	golden(t, "conversation.json", c)
}
