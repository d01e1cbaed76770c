package wire

import (
	"bytes"
	"encoding/hex"
	"path/filepath"
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

// talk begins a conversation.
func talk(t *testing.T, about string, client, server Hello) *conversation {
	side := func(name string, h Hello) *talker {
		return &talker{name: name, hello: h, parts: make(map[uint64][]byte), perCall: MinWindow,
			left: left{Connection: MinWindow, Calls: make(map[int64]int64)}}
	}
	return &conversation{t: t, About: about, client: side("client", client), server: side("server", server)}
}

// end ends the conversation, and compares it with its file.
func (c *conversation) end(name string) {
	c.note(c.client, AppendDrain(nil, 0))
	c.note(c.client, AppendBye(nil, ByeDone, ""))
	golden(c.t, filepath.Join("conversations", name+".json"), c)
}

// small is the HELLO of a side with the smallest windows.
var small = Hello{Version: 1, Stream: MinWindow, Connection: MinWindow, Block: MinBlock}

func TestAConversationWithCredit(t *testing.T) {
	c := talk(t, "The client sends a message of 100,000 bytes before it knows the server's windows; the server answers with a small one; "+
		"a second call is given up by its caller. client and server say what credit each has left to send messages with, after the frame.",
		small, Hello{Version: 1, Stream: 1 << 17, Connection: 80_000, Calls: 100, Block: 1 << 20})
	c.greet(c.client)
	request := &Step{Stream: 1, Open: open("/shop.Shop/Import", nil), HasMessage: true, Message: bytes.Repeat([]byte("0123456789"), 10_000), HalfClose: true}
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
	c.end("credit")
}

// A receiver that collects credit must give some back before less than the cost of a
// message's beginning is left.
func TestAConversationAtTheEndOfItsCredit(t *testing.T) {
	c := talk(t, "A message leaves 4 bytes of the call's credit. The next one, which is empty, cannot begin before credit has come.",
		small, Hello{Version: 1, Stream: MinWindow, Connection: 1 << 20, Block: MinBlock})
	c.greet(c.client)
	c.greet(c.server)
	c.send(c.client, &Step{Stream: 1, Open: open("/shop.Shop/Upload", nil), HasMessage: true, Message: bytes.Repeat([]byte{'.'}, MinWindow-5-4)})
	empty := &Step{Stream: 1, HasMessage: true, HalfClose: true}
	c.send(c.client, empty)
	if empty.Done() || c.client.Calls[1] != 4 {
		t.Fatalf("%+v is left", c.client.left)
	}
	c.note(c.server, AppendCredit(AppendCredit(nil, 0, MinWindow), 1, MinWindow-4))
	c.send(c.client, empty)
	c.send(c.server, &Step{Stream: 1, Header: metadata.MD{}, HasMessage: true, End: &link.End{}})
	c.over(1)
	if !empty.Done() {
		t.Fatal("the empty message is not sent")
	}
	c.end("least-credit")
}

// A receiver that accepts the size of a message takes all of it, whatever its window is.
func TestAConversationWithAMessageLargerThanItsWindow(t *testing.T) {
	const size = 66_000
	c := talk(t, "A message of 66,000 bytes has more than the call's window, and less than the connection's. Its receiver grants the call what the rest of it lacks.",
		small, Hello{Version: 1, Stream: MinWindow, Connection: 1 << 20, Block: MinBlock})
	c.greet(c.client)
	c.greet(c.server)
	request := &Step{Stream: 1, Open: open("/shop.Shop/Import", nil), HasMessage: true, Message: bytes.Repeat([]byte("0123456789"), size/10), HalfClose: true}
	c.send(c.client, request)
	if request.Done() || c.client.Calls[1] != 0 {
		t.Fatalf("%+v is left", c.client.left)
	}
	c.note(c.server, AppendCredit(nil, 1, size+MessageCost-MinWindow))
	c.send(c.client, request)
	if !request.Done() || c.client.Calls[1] != 0 {
		t.Fatalf("%+v is left", c.client.left)
	}
	c.send(c.server, &Step{Stream: 1, Header: metadata.MD{}, HasMessage: true, Message: []byte("done"), End: &link.End{}})
	c.over(1)
	c.end("large-message")
}

// What a refused call has introduced holds for later calls.
func TestAConversationWithACallThatIsRefused(t *testing.T) {
	c := talk(t, "A client makes two calls before it knows that the server takes one at a time. The second is refused as unprocessed, so it may be made "+
		"again: over this connection when the first has ended. Its frame refers to the method and the key that the refused call introduced, "+
		"and its message has used credit of the connection, which the server has given back.",
		small, Hello{Version: 1, Stream: MinWindow, Connection: MinWindow, Calls: 1, Block: MinBlock})
	again := func(stream uint64) {
		c.send(c.client, &Step{Stream: stream, Open: open("/shop.Shop/Put", metadata.Pairs("item", "7")), HasMessage: true, Message: []byte("seven"), HalfClose: true})
	}
	c.greet(c.client)
	c.send(c.client, &Step{Stream: 1, Open: open("/shop.Shop/Get", nil), HasMessage: true, Message: []byte("one"), HalfClose: true})
	again(3)
	c.greet(c.server)
	c.note(c.server, AppendReset(AppendCredit(nil, 0, 10), 3, ResetUnprocessed, "too many calls at a time"))
	c.over(3)
	c.send(c.server, &Step{Stream: 1, Header: metadata.MD{}, HasMessage: true, Message: []byte("1"), End: &link.End{}})
	c.over(1)
	again(5)
	c.send(c.server, &Step{Stream: 5, Header: metadata.MD{}, HasMessage: true, End: &link.End{}})
	c.over(5)
	c.end("refused")
}

// Calls that were reset do not count against HELLO's calls, whatever their handlers do.
func TestAConversationWithACallInPlaceOfOneThatIsReset(t *testing.T) {
	c := talk(t, "The server takes two calls at a time, and the client has two open. It gives up the first, and makes a third at once, without a sign that "+
		"the server has seen the RESET. The server accepts the third, also if the handler of the first still runs: only open calls count.",
		small, Hello{Version: 1, Stream: MinWindow, Connection: MinWindow, Calls: 2, Block: MinBlock})
	c.greet(c.client)
	c.greet(c.server)
	watch := func(stream uint64) {
		c.send(c.client, &Step{Stream: stream, Open: open("/shop.Shop/Watch", nil), HasMessage: true, Message: []byte("shelf"), HalfClose: true})
	}
	watch(1)
	watch(3)
	c.note(c.client, AppendReset(nil, 1, ResetCancelled, ""))
	c.over(1)
	watch(5)
	c.send(c.server, &Step{Stream: 5, Header: metadata.MD{}, HasMessage: true, Message: []byte("news"), End: &link.End{}})
	c.over(5)
	c.send(c.server, &Step{Stream: 3, Header: metadata.MD{}, HasMessage: true, Message: []byte("news"), End: &link.End{}})
	c.over(3)
	c.end("reset")
}

// Frames of calls that have ended are decoded.
func TestAConversationWithFramesOfACallThatHasEnded(t *testing.T) {
	c := talk(t, "A client gives up its call while the answer is under way. The answer has no effect on the call, but the client gives back the credit of "+
		"its message, and the next answer refers to the key that it introduced.", small, small)
	c.greet(c.client)
	c.greet(c.server)
	c.send(c.client, &Step{Stream: 1, Open: open("/shop.Shop/Get", nil), HasMessage: true, Message: []byte("one"), HalfClose: true})
	c.note(c.client, AppendReset(nil, 1, ResetCancelled, ""))
	delete(c.client.Calls, 1)
	c.send(c.server, &Step{Stream: 1, Header: metadata.Pairs("shelf", "12"), HasMessage: true, Message: []byte("1"), End: &link.End{}})
	c.over(1)
	c.note(c.client, AppendCredit(nil, 0, 6))
	c.send(c.client, &Step{Stream: 3, Open: open("/shop.Shop/Get", nil), HasMessage: true, Message: []byte("two"), HalfClose: true})
	c.send(c.server, &Step{Stream: 3, Header: metadata.Pairs("shelf", "13"), HasMessage: true, Message: []byte("2"), End: &link.End{}})
	c.over(3)
	c.end("ended")
}

// A call that is open when its server drains ends as any other.
func TestAConversationWithAServerThatDrains(t *testing.T) {
	c := talk(t, "A server that stops announces it, and goes on accepting calls until the client has answered its PING. Then it names the last call, "+
		"and the connection ends when that has ended: the client says BYE here, and the server may do so as well.", small, small)
	c.greet(c.client)
	c.greet(c.server)
	c.send(c.client, &Step{Stream: 1, Open: open("/shop.Shop/Get", nil), HasMessage: true, Message: []byte("one"), HalfClose: true})
	token := [8]byte{1}
	c.note(c.server, AppendPing(AppendDrain(nil, NoLast), KindPing, token))
	c.note(c.client, AppendPing(nil, KindPong, token))
	c.note(c.server, AppendDrain(nil, 1))
	c.send(c.server, &Step{Stream: 1, Header: metadata.MD{}, HasMessage: true, Message: []byte("1"), End: &link.End{}})
	c.over(1)
	c.end("drain")
}

func TestAConversationWithASideThatTakesNoCalls(t *testing.T) {
	c := talk(t, "Both sides say with bit 0 of HELLO's features that they take no calls. A call that the client made before it knew that is unprocessed.",
		Hello{Version: 1, Features: FeatureNoCalls, Stream: MinWindow, Connection: MinWindow, Block: MinBlock},
		Hello{Version: 1, Features: FeatureNoCalls, Stream: MinWindow, Connection: MinWindow, Block: MinBlock})
	c.greet(c.client)
	c.send(c.client, &Step{Stream: 1, Open: open("/shop.Shop/Get", nil), HasMessage: true, HalfClose: true})
	c.greet(c.server)
	c.note(c.server, AppendReset(AppendCredit(nil, 0, 5), 1, ResetUnprocessed, "this side takes no calls"))
	c.over(1)
	c.end("no-calls")
}
