package mux

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/codec"
	"github.com/nearcall/nearcall/internal/encoded"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/message"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/wire"
)

// A witness is an Acceptor that records the calls and their ends, and the end of the
// session.
type witness struct {
	refuse error

	mu      sync.Mutex
	streams []link.Stream
	aborts  []error // the reasons of aborted calls
	closed  []error
	gone    int // how often Gone was called
}

func (*witness) HandleUnary(*link.UnaryCall, bool) error { return link.ErrNoCall }
func (*witness) Terms() link.Terms                       { return link.Terms{} }

func (w *witness) HandleStream(s link.Stream, _ *link.CallHeader) error {
	if w.refuse != nil {
		return w.refuse
	}
	w.watch(s)
	return nil
}

func (w *witness) Closed(reason error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = append(w.closed, reason)
}

func (w *witness) Gone() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.gone++
}

// told returns the errors passed to Closed. Use it while time passes in a test.
func (w *witness) told() []error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.closed)
}

func (w *witness) watch(s link.Stream) {
	w.mu.Lock()
	w.streams = append(w.streams, s)
	w.mu.Unlock()
	s.OnAbort(func(reason error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.aborts = append(w.aborts, reason)
	})
}

// first returns the first call that was accepted.
func (w *witness) first(t *testing.T) link.Stream {
	t.Helper()
	synctest.Wait()
	if len(w.streams) == 0 {
		t.Fatalf("no call was accepted; the session ended: %v", w.closed)
	}
	return w.streams[0]
}

// A raw is a peer that is not a Session. It reads everything at once, unless it is
// deaf.
type raw struct {
	*testing.T
	conn net.Conn
	read chan struct{} // closed when there is nothing left to read

	mu  sync.Mutex
	got []byte
}

// lone returns a session and a raw peer that has sent nothing. It must be called in a
// synctest bubble.
func lone(t *testing.T, o Options, w *witness, deaf bool) (*Session, *raw) {
	if w == nil {
		return loneWith(t, o, nil, deaf)
	}
	return loneWith(t, o, w, deaf)
}

// loneWith is lone with any acceptor.
func loneWith(t *testing.T, o Options, acceptor link.Acceptor, deaf bool) (*Session, *raw) {
	a, b := net.Pipe()
	o.Name = "peer"
	s := newSession(a, o)
	r := &raw{T: t, conn: b, read: make(chan struct{})}
	if deaf {
		close(r.read)
	} else {
		go r.readAll()
	}
	s.Start(acceptor)
	t.Cleanup(func() {
		_ = b.Close()
		<-s.Gone()
		<-r.read
	})
	return s, r
}

// met is lone with a peer that has sent HELLO, with the smallest windows and block.
func met(t *testing.T, o Options, w *witness) (*Session, *raw) {
	return metWith(t, o, w, start())
}

// metWith is met with another HELLO.
func metWith(t *testing.T, o Options, w *witness, hello []byte) (*Session, *raw) {
	s, r := lone(t, o, w, false)
	r.write(hello)
	return s, r
}

func (r *raw) readAll() {
	defer close(r.read)
	buf := make([]byte, 1<<16)
	for {
		n, err := r.conn.Read(buf)
		r.mu.Lock()
		r.got = append(r.got, buf[:n]...)
		r.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// write writes b, and ignores errors: the session may have stopped reading.
func (r *raw) write(b ...[]byte) {
	_, _ = r.conn.Write(slices.Concat(b...))
	synctest.Wait()
}

// frames returns the frames that have arrived after the first line.
func (r *raw) frames() (all []wire.Frame) {
	r.Helper()
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	b, ok := bytes.CutPrefix(r.got, []byte(wire.Magic))
	if !ok {
		r.Fatalf("it begins with %.20q", r.got)
	}
	for len(b) > 0 {
		f, n, err := wire.Next(b)
		if err != nil || n == 0 {
			r.Fatalf("after %d frames: %d bytes left, %v", len(all), len(b), err)
		}
		all = append(all, f)
		b = b[n:]
	}
	return all
}

// of returns the frames of one kind.
func (r *raw) of(k wire.Kind) (all []wire.Frame) {
	r.Helper()
	for _, f := range r.frames() {
		if f.Kind == k || k == wire.KindStream && f.Kind.Stream() {
			all = append(all, f)
		}
	}
	return all
}

// credit returns how much credit a stream was granted.
func (r *raw) credit(stream uint64) (sum int) {
	r.Helper()
	for _, f := range r.of(wire.KindCredit) {
		if f.Stream == stream {
			n, _ := wire.ParseCredit(f.Body)
			sum += int(n)
		}
	}
	return sum
}

// start returns the first line and the HELLO of a peer.
func start() []byte {
	return wire.AppendHello([]byte(wire.Magic), &wire.Hello{Version: 1, Stream: wire.MinWindow, Connection: wire.MinWindow, Block: wire.MinBlock})
}

// literal returns a frame with the given body.
func literal(k wire.Kind, stream uint64, body ...byte) []byte {
	n := 2 + len(body)
	if stream > 0x7f || n > wire.MaxFrame {
		panic("it does not fit")
	}
	return append([]byte{byte(n), byte(n >> 8), byte(k), byte(stream)}, body...)
}

const (
	head       = wire.KindStream | wire.FlagHead
	msg        = wire.KindStream | wire.FlagMessage
	begins     = msg | wire.FlagMore
	piece      = wire.KindStream | wire.FlagPiece
	goesOn     = piece | wire.FlagMore
	finish     = wire.KindStream | wire.FlagEnd
	compressed = msg | wire.FlagCompressed
)

// opens is the head of a call, without references to names or profiles.
var opens = []byte{1, 4, '/', 'a', '/', 'b', 0, 0, 0, 0, 0, 0, 0, 0}

func opened(id uint64) []byte { return literal(head, id, opens...) }

func fill(n int) []byte { return make([]byte, n) }

// many returns count messages of n bytes.
func many(count, n int, stream func(i int) uint64) (b []byte) {
	for i := range count {
		b = append(b, literal(msg, stream(i), fill(n)...)...)
	}
	return b
}

func toOne(int) uint64 { return 1 }

// settings is the beginning of an HTTP/2 server's output.
var settings = []byte{0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0x40, 0}

func TestAPeerThatBreaksRulesIsToldSo(t *testing.T) {
	const server, client = false, true
	for name, c := range map[string]struct {
		victim bool // a client, which has opened call 1
		greet  bool // the peer starts with a valid line and HELLO
		send   [][]byte
		want   string
	}{
		"another line":         {send: [][]byte{[]byte("nearcall/2\n")}, want: "does not speak nearcall's protocol"},
		"an HTTP/2 client":     {send: [][]byte{[]byte("PRI * HTTP/2.0\r\n\r\n")}, want: "does not speak nearcall's protocol"},
		"an HTTP/2 server":     {victim: client, send: [][]byte{settings}, want: "an ordinary gRPC server"},
		"an HTTP/1 server":     {victim: client, send: [][]byte{[]byte("HTTP/1.1 400 Bad Request\r\n")}, want: "HTTP server"},
		"a TLS alert":          {victim: client, send: [][]byte{{0x15, 3, 1, 0, 2, 2, 70}}, want: "expects TLS"},
		"no hello":             {send: [][]byte{[]byte(wire.Magic), opened(1)}, want: "has not said hello"},
		"an extension first":   {send: [][]byte{[]byte(wire.Magic), literal(0x40, 0)}, want: "has not said hello"},
		"half a hello":         {send: [][]byte{[]byte(wire.Magic), literal(wire.KindHello, 0, 1, 0)}, want: "ends early"},
		"small windows":        {send: [][]byte{[]byte(wire.Magic), literal(wire.KindHello, 0, 1, 0, 1, 1, 0, 1, 0, 0)}, want: "windows of 1"},
		"hello twice":          {greet: true, send: [][]byte{start()[len(wire.Magic):]}, want: "hello twice"},
		"length 0":             {greet: true, send: [][]byte{{0, 0}}, want: "of length 0"},
		"kind 0":               {greet: true, send: [][]byte{literal(0, 0)}, want: "kind 0x0"},
		"kind 10":              {greet: true, send: [][]byte{literal(10, 0)}, want: "kind 0xa"},
		"no flags":             {greet: true, send: [][]byte{opened(1), literal(wire.KindStream, 1)}, want: "flags"},
		"reserved flag":        {greet: true, send: [][]byte{opened(1), literal(wire.KindStream|0x40, 1)}, want: "flags"},
		"a call of no number":  {greet: true, send: [][]byte{literal(head, 0, opens...)}, want: "stream 0"},
		"a long number":        {greet: true, send: [][]byte{literal(wire.KindDrain, 0, 0x81, 0)}, want: "shortest form"},
		"opened with a piece":  {greet: true, send: [][]byte{literal(head|wire.FlagPiece, 1, append(slices.Clone(opens), 1)...)}, want: "has the flags"},
		"half a head":          {greet: true, send: [][]byte{literal(head, 1, opens[:5]...)}, want: "ends early"},
		"a name that is none":  {greet: true, send: [][]byte{literal(head, 1, 7)}, want: "name 5 of 0"},
		"ping of 7 bytes":      {greet: true, send: [][]byte{literal(wire.KindPing, 0, fill(7)...)}, want: "a ping of 7 bytes"},
		"pong of 9 bytes":      {greet: true, send: [][]byte{literal(wire.KindPong, 0, fill(9)...)}, want: "a ping of 9 bytes"},
		"credit of 0":          {greet: true, send: [][]byte{wire.AppendCredit(nil, 0, 0)}, want: "credit of nothing"},
		"credit of 0 to call":  {greet: true, send: [][]byte{opened(1), wire.AppendCredit(nil, 1, 0)}, want: "credit of nothing"},
		"credit without end":   {greet: true, send: [][]byte{wire.AppendCredit(nil, 0, wire.MaxCredit-1), wire.AppendCredit(nil, 0, wire.MaxCredit-1)}, want: "more credit than"},
		"and to a call":        {greet: true, send: [][]byte{opened(1), bytes.Repeat(wire.AppendCredit(nil, 1, wire.MaxCredit-1), 3)}, want: "more credit than"},
		"numbers out of order": {greet: true, send: [][]byte{opened(3), opened(1)}, want: "opens call 1 after 3"},
		"a number again":       {greet: true, send: [][]byte{opened(1), opened(1)}, want: "opens call 1 after 1"},
		"a number once over":   {greet: true, send: [][]byte{opened(1), wire.AppendReset(nil, 1, 0, ""), opened(1)}, want: "opens call 1 after 1"},
		"a client's even call": {greet: true, send: [][]byte{opened(2)}, want: "call 2, which was not opened"},
		"the other side's":     {greet: true, send: [][]byte{literal(head, 2, 0)}, want: "call 2, which was not opened"},
		"never opened":         {greet: true, send: [][]byte{literal(msg, 1, 1)}, want: "call 1, which was not opened"},
		"credit to none":       {greet: true, send: [][]byte{wire.AppendCredit(nil, 1, 1)}, want: "call 1, which was not opened"},
		"reset of none":        {greet: true, send: [][]byte{wire.AppendReset(nil, 7, 0, "")}, want: "call 7, which was not opened"},
		"body of a half-close": {greet: true, send: [][]byte{opened(1), literal(finish, 1, 0, 0)}, want: "left over"},
		"message after all":    {greet: true, send: [][]byte{opened(1), literal(finish, 1), literal(msg, 1)}, want: "after the end of sending"},
		"half-close twice":     {greet: true, send: [][]byte{opened(1), literal(finish, 1), literal(finish, 1)}, want: "end of sending comes twice"},
		"half-close within":    {greet: true, send: [][]byte{opened(1), literal(begins, 1, 9, 1), literal(finish, 1)}, want: "within a message"},
		"end beside more":      {greet: true, send: [][]byte{opened(1), literal(begins|wire.FlagEnd, 1, 9, 1)}, want: "flags"},
		"no credit of a call":  {greet: true, send: [][]byte{opened(1), many(10, 10_000, toOne)}, want: "of a call than it has credit for"},
		"a message in another": {greet: true, send: [][]byte{opened(1), literal(begins, 1, 9, 1), literal(msg, 1, 1)}, want: "out of order"},
		"a piece of none":      {greet: true, send: [][]byte{opened(1), literal(piece, 1, 1)}, want: "out of order"},
		"a piece too much":     {greet: true, send: [][]byte{opened(1), literal(msg, 1, 1), literal(piece, 1, 1)}, want: "out of order"},
		"pieces too long":      {greet: true, send: [][]byte{opened(1), literal(begins, 1, 3, 1), literal(piece, 1, 1, 1, 1)}, want: "of its size"},
		"pieces too short":     {greet: true, send: [][]byte{opened(1), literal(begins, 1, 3, 1), literal(piece, 1, 1)}, want: "of its size"},
		"more than all":        {greet: true, send: [][]byte{opened(1), literal(begins, 1, 3, 1), literal(goesOn, 1, 1, 1)}, want: "of its size"},
		"an empty piece":       {greet: true, send: [][]byte{opened(1), literal(begins, 1, 3, 1), literal(goesOn, 1)}, want: "piece of a message is empty"},
		"parts, then another":  {greet: true, send: [][]byte{literal(wire.KindPart, 1, opens[:3]...), literal(wire.KindPing, 0, fill(8)...)}, want: "between the parts"},
		"an empty part":        {greet: true, send: [][]byte{literal(wire.KindPart, 1), literal(wire.KindPing, 0, fill(8)...)}, want: "between the parts"},
		"parts of two":         {greet: true, send: [][]byte{literal(wire.KindPart, 1, 1), literal(wire.KindPart, 3, 1)}, want: "between the parts"},
		"parts, then a call's": {greet: true, send: [][]byte{opened(1), literal(wire.KindPart, 3, 1), literal(msg, 1)}, want: "between the parts"},
		"parts, then no block": {greet: true, send: [][]byte{opened(1), literal(wire.KindPart, 1, 1), literal(msg, 1)}, want: "parts of a block"},
		"parts of a new name":  {greet: true, send: [][]byte{literal(wire.KindPart, 1, 0, 4), literal(head, 1, append([]byte("/a/b"), opens[6:]...)...)}, want: "new name"},
		"parts too long":       {greet: true, send: [][]byte{literal(wire.KindPart, 1, fill(wire.MinBlock)...), literal(wire.KindPart, 1, 0)}, want: "a block is larger"},

		"header twice":         {victim: client, greet: true, send: [][]byte{literal(head, 1, 0), literal(head, 1, 0)}, want: "header of a call comes twice"},
		"header within one":    {victim: client, greet: true, send: [][]byte{literal(begins, 1, 9, 1), literal(head, 1, 0)}, want: "header of a call comes within a message"},
		"end within a message": {victim: client, greet: true, send: [][]byte{literal(begins, 1, 9, 1), literal(finish, 1, 0, 0)}, want: "within a message"},
		"a server's odd call":  {victim: client, greet: true, send: [][]byte{opened(3)}, want: "call 3, which was not opened"},
		"of a call unopened":   {victim: client, greet: true, send: [][]byte{literal(finish, 3, 0, 0)}, want: "call 3, which was not opened"},
		"half an end":          {victim: client, greet: true, send: [][]byte{literal(finish, 1, 5, 1)}, want: "ends early"},
		"no credit for reply":  {victim: client, greet: true, send: [][]byte{many(10, 10_000, toOne)}, want: "of a call than it has credit for"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &witness{}
				s, peer := lone(t, Options{Client: c.victim == client, Config: configured(c.victim == client, func(c *options.Connections) { c.MaxHeader = wire.MinBlock })}, w, false)
				if c.victim == client {
					st, err := s.NewStream(t.Context(), &link.CallHeader{Profile: &link.Profile{}})
					if err != nil {
						t.Fatal(err)
					}
					w.watch(st)
				}
				synctest.Wait()
				if c.greet {
					peer.write(start())
				}
				peer.write(c.send...)
				ended(t, s, w, peer, c.want)
			})
		})
	}
}

// ended checks how a session ends after a protocol error.
func ended(t *testing.T, s *Session, w *witness, peer *raw, want string) {
	t.Helper()
	synctest.Wait()
	if len(w.closed) != 1 || !errors.Is(w.closed[0], wire.ErrProtocol) {
		t.Fatalf("the session ended for %v, want a protocol error", w.closed)
	}
	reason := w.closed[0]
	says(t, reason, want, "peer: ")
	if !link.IsClosed(s.Ended()) || !link.IsClosed(s.Done()) {
		t.Error("the session goes on")
	}
	all := peer.frames()
	bye := all[len(all)-1]
	if bye.Kind != wire.KindBye {
		t.Fatalf("the last frame is of kind %#x, want BYE", byte(bye.Kind))
	}
	if code, text, err := wire.ParseBye(bye.Body); code != wire.ByeProtocol || text != reason.Error() || err != nil {
		t.Errorf("BYE says %d, %q, %v", code, text, err)
	}
	// A call that the peer had reset was aborted for that reason.
	for _, err := range w.aborts {
		if err != reason && err != context.Canceled {
			t.Errorf("a call is aborted for %v", err)
		}
	}
	if len(w.aborts) != len(w.streams) {
		t.Errorf("of %d calls %d were aborted", len(w.streams), len(w.aborts))
	}
	if _, err := s.NewStream(t.Context(), &link.CallHeader{Profile: &link.Profile{}}); !errors.Is(err, link.ErrUnprocessed) || !errors.Is(err, reason) {
		t.Errorf("Open returns %v", err)
	}
	empty(t, s)
	_ = peer.conn.Close()
	<-s.Gone()
}

// TestACallThatBreaksTheConnectionIsNotMadeAgain checks that DRAIN counts the call as
// seen, so that its caller does not retry it on another connection.
func TestACallThatBreaksTheConnectionIsNotMadeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &witness{}
		s, peer := met(t, Options{}, w)
		peer.write(literal(wire.KindStream|wire.FlagHead, 5, 100)) // refers to a name that has no number
		ended(t, s, w, peer, "name 98 of 0")
		drain := peer.of(wire.KindDrain)
		if len(drain) != 1 {
			t.Fatalf("DRAIN comes %d times", len(drain))
		}
		if last, err := wire.ParseDrain(drain[0].Body); last != 5 || err != nil {
			t.Errorf("DRAIN says that calls up to %d were seen, %v", last, err)
		}
	})
}

// empty checks that a session has no calls left.
func empty(t *testing.T, s *Session) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.streams) > 0 || len(s.live) > 0 || s.calls > 0 || s.writing.ready.first != nil || s.writing.starved.first != nil {
		t.Errorf("%d streams are left, live %v, %d count, ready %v, starved %v", len(s.streams), len(s.live), s.calls, s.writing.ready, s.writing.starved)
	}
}

func says(t *testing.T, err error, words ...string) {
	t.Helper()
	for _, w := range words {
		if err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("the error is %v, want %q in it", err, w)
		}
	}
}

// TestMessagesBeyondTheCreditOfTheConnection exceeds the credit of the connection, but
// not that of its call.
func TestMessagesBeyondTheCreditOfTheConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &witness{}
		s, peer := met(t, Options{}, w)
		s.mu.Lock()
		s.connIn = 100 // only so: the connection's credit is returned on arrival
		s.mu.Unlock()
		peer.write(opened(1), literal(msg, 1, fill(95)...), literal(msg, 1))
		ended(t, s, w, peer, "sends more than it has credit for")
	})
}

// TestARuleBrokenWhileAReplyWaits checks that a session does not wait for credit after
// a protocol error.
func TestARuleBrokenWhileAReplyWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &witness{}
		s, peer := met(t, Options{}, w)
		peer.write(opened(1))
		st := w.first(t)
		if err := st.Send(&link.Frame{Msg: ofBytes(3 * wire.MinWindow), HasMsg: true, End: &link.End{}}); err != nil {
			t.Fatal(err)
		}
		w.streams = nil // the call has ended, so it is not aborted
		peer.write(literal(10, 0))
		ended(t, s, w, peer, "kind 0xa")
	})
}

func slice(b []byte) mem.BufferSlice { return mem.BufferSlice{mem.SliceBuffer(b)} }

func ofBytes(n int) message.Message {
	return message.Encoded(slice(make([]byte, n)))
}

func TestAPeerThatDoesNotSayHello(t *testing.T) {
	for name, c := range map[string]struct {
		send   string
		hangUp bool
		want   string
	}{
		"silence":           {"", false, "did not complete the handshake in time"},
		"half of the line":  {"near", false, "did not complete the handshake in time"},
		"the line alone":    {wire.Magic, false, "did not complete the handshake in time"},
		"hang-up":           {"", true, "closed the connection during the handshake"},
		"hang-up within it": {"near", true, "closed the connection during the handshake"},
		"hang-up after it":  {wire.Magic + "\x03", true, "closed the connection during the handshake"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began, w := time.Now(), &witness{}
				s, peer := lone(t, Options{HelloTime: time.Minute}, w, false)
				st, err := s.NewStream(t.Context(), &link.CallHeader{Profile: &link.Profile{}})
				if err != nil {
					t.Fatal(err)
				}
				peer.write([]byte(c.send))
				if c.hangUp {
					_ = peer.conn.Close()
				}
				err = s.Meet(t.Context())
				says(t, err, c.want, "peer: ")
				<-s.Gone()
				if took := time.Since(began); (took == time.Minute) == c.hangUp {
					t.Errorf("it took %v", took)
				}
				if len(w.closed) != 1 || w.closed[0] != err {
					t.Errorf("closed for %v", w.closed)
				}
				if rerr := st.Recv(&link.Frame{}); !errors.Is(rerr, err) {
					t.Errorf("a call ends with %v", rerr)
				}
			})
		})
	}
}

func TestMeetCanBeLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := lone(t, Options{Client: true}, nil, false)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := s.Meet(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
	})
}

// TestFramesOfCallsThatAreOver sends frames of calls whose end the peer might not have
// seen. They are ignored, and the connection's credit that they took is returned.
func TestFramesOfCallsThatAreOverAreIgnored(t *testing.T) {
	for name, end := range map[string]func(s *Session, st link.Stream, peer *raw){
		"ended":   func(_ *Session, st link.Stream, _ *raw) { _ = st.Send(&link.Frame{End: &link.End{}}) },
		"aborted": func(_ *Session, st link.Stream, _ *raw) { st.Abort(errors.New("enough")) },
		"reset":   func(_ *Session, _ link.Stream, peer *raw) { peer.write(wire.AppendReset(nil, 1, 0, "")) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &witness{}
				s, peer := met(t, Options{Config: configured(false, func(c *options.Connections) { c.ConnWindow = wire.MinWindow })}, w)
				peer.write(opened(1))
				end(s, w.first(t), peer)
				synctest.Wait()
				const n = 20
				peer.write(many(n, 10_000, toOne), literal(begins, 1, 9, 1), literal(finish, 1), literal(finish, 1), literal(piece, 1, 7),
					wire.AppendCredit(nil, 1, 5), wire.AppendReset(nil, 1, 0, ""))
				if len(w.closed) > 0 {
					t.Fatalf("the session ended: %v", w.closed)
				}
				took := n*(10_000+wire.MessageCost) + 1 + wire.MessageCost + 1
				if back := peer.credit(0); back > took || back < took-wire.MinWindow/4 {
					t.Errorf("of %d bytes %d were given back", took, back)
				}
				if peer.credit(1) > 0 {
					t.Error("a call that is over gets credit")
				}
				if s.connIn+s.taken != wire.MinWindow {
					t.Errorf("the peer may send %d, and is owed %d", s.connIn, s.taken)
				}
				empty(t, s)
			})
		})
	}
}

func TestPingsAreAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, peer := met(t, Options{}, &witness{})
		peer.write(wire.AppendPing(nil, wire.KindPing, [8]byte{1, 2}), wire.AppendPing(nil, wire.KindPong, [8]byte{3}), wire.AppendPing(nil, wire.KindPing, [8]byte{4}))
		all := peer.of(wire.KindPong)
		if len(all) != 2 || all[0].Body[1] != 2 || all[1].Body[0] != 4 {
			t.Errorf("%v", all)
		}
	})
}

func TestExtensionsAreIgnored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &witness{}
		_, peer := met(t, Options{}, w)
		for k := wire.Kind(0x40); k < wire.KindStream; k++ {
			peer.write(literal(k, 0), literal(k, 99, 1, 2, 3))
		}
		peer.write(opened(1))
		w.first(t)
	})
}

func TestAPeerThatAsksAndDoesNotRead(t *testing.T) {
	for name, drains := range map[string][]byte{"PINGs": nil, "PINGs while it drains": announced} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &witness{}
				s, peer := lone(t, Options{Client: true}, w, true) // a client, because servers limit PINGs
				peer.write(start())
				if _, err := s.NewStream(t.Context(), &link.CallHeader{Profile: &link.Profile{}}); err != nil {
					t.Fatal(err)
				}
				ping := bytes.Repeat(wire.AppendPing(nil, wire.KindPing, [8]byte{}), 1000)
				_, err := peer.conn.Write(append(drains, ping...))
				for n := 0; err == nil; n++ {
					if n > 1000 {
						t.Fatal("it is owed without end")
					}
					_, err = peer.conn.Write(ping)
				}
				<-s.Gone()
				says(t, w.closed[0], "does not read")
			})
		})
	}
}

// rawCodec passes messages through as bytes.
var rawCodec = bytesCodec{codec.Proto()}

type bytesCodec struct{ message.Codec }

func (bytesCodec) Decode(data message.Data, v any) (kept bool, err error) {
	*v.(*[]byte) = data.Copy()
	return false, nil
}

func TestByeOfThePeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &witness{}
		s, peer := met(t, Options{}, w)
		peer.write(opened(1))
		w.first(t)
		mine, err := s.NewStream(t.Context(), &link.CallHeader{Profile: &link.Profile{}})
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		peer.write(wire.AppendBye(nil, wire.ByeClosed, "lunch"), opened(3))
		<-s.Gone()
		if len(w.closed) != 1 || len(w.aborts) != 1 || w.aborts[0] != w.closed[0] {
			t.Errorf("closed for %v, aborted for %v", w.closed, w.aborts)
		}
		says(t, w.closed[0], "peer: lunch")
		if err := mine.Recv(&link.Frame{}); err != w.closed[0] {
			t.Errorf("%v", err)
		}
		empty(t, s)
	})
}

func TestMoreCallsThanAreTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &witness{}
		s, peer := met(t, Options{Config: configured(false, func(c *options.Connections) { c.MaxStreams = 2 })}, w)
		peer.write(opened(1), opened(3), opened(5), literal(msg, 5, 1))
		if r := peer.of(wire.KindReset); len(r) != 1 || r[0].Stream != 5 || r[0].Body[0] != byte(wire.ResetUnprocessed) {
			t.Errorf("the peer gets %v", r)
		}
		// Each way to end a call makes room for another.
		for i, end := range []func(){
			func() { peer.write(wire.AppendReset(nil, 1, 0, "")) },
			func() { w.streams[1].Abort(errors.New("enough")) },
			func() { _ = w.streams[2].Send(&link.Frame{End: &link.End{}}) },
			func() { // a call whose END was not written yet
				_ = w.streams[3].Send(&link.Frame{Msg: ofBytes(wire.MinWindow), HasMsg: true, End: &link.End{}})
				peer.write(wire.AppendReset(nil, uint64(7+2*2), 0, ""))
			},
		} {
			end()
			synctest.Wait()
			peer.write(opened(uint64(7 + 2*i)))
			if n := len(w.streams); n != 3+i {
				t.Fatalf("after end %d there were %d calls", i, n)
			}
		}
		if s.calls != 2 || len(s.streams) != 2 {
			t.Errorf("%d calls count, %d are there", s.calls, len(s.streams))
		}
	})
}

func TestCallsThatAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		w    *witness
		code wire.ResetCode
	}{
		"nobody":      {nil, wire.ResetUnprocessed},
		"unprocessed": {&witness{refuse: link.Unprocessed{Err: errors.New("no")}}, wire.ResetUnprocessed},
		"exhausted":   {&witness{refuse: encoded.Because{Text: "no", Kind: link.ErrExhausted}}, wire.ResetExhausted},
		"cancelled":   {&witness{refuse: context.Canceled}, wire.ResetCancelled},
		"deadline":    {&witness{refuse: context.DeadlineExceeded}, wire.ResetDeadline},
		"other":       {&witness{refuse: errors.New("no")}, wire.ResetUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, peer := met(t, Options{Client: true}, c.w)
				peer.write(opened(2))
				r := peer.of(wire.KindReset)
				if len(r) != 1 {
					t.Fatalf("the peer gets %v", r)
				}
				code, text, _ := wire.ParseReset(r[0].Body)
				if code != c.code {
					t.Errorf("code %d, %q", code, text)
				}
				empty(t, s)
			})
		})
	}
}

func TestWhatAResetSays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, peer := met(t, Options{Client: true}, nil)
		for i, want := range []func(error) bool{
			wire.ResetCancelled:   func(err error) bool { return err == context.Canceled },
			wire.ResetDeadline:    func(err error) bool { return err == context.DeadlineExceeded },
			wire.ResetUnprocessed: func(err error) bool { return errors.Is(err, link.ErrUnprocessed) },
			wire.ResetUnavailable: func(err error) bool { return err.Error() == "text" },
			wire.ResetProtocol:    func(err error) bool { return errors.Is(err, link.ErrBroken) && err.Error() == "text" },
			wire.ResetExhausted:   func(err error) bool { return errors.Is(err, link.ErrExhausted) && err.Error() == "text" },
			6:                     func(err error) bool { return err.Error() == "text" },
		} {
			st, err := s.NewStream(t.Context(), &link.CallHeader{Profile: &link.Profile{}})
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			peer.write(wire.AppendReset(nil, uint64(1+2*i), wire.ResetCode(i), "text"))
			if err := st.Recv(&link.Frame{}); err == nil || !want(err) {
				t.Errorf("code %d: %v", i, err)
			}
		}
		empty(t, s)
	})
}

// TestACallThatWasAnsweredIsNotUnprocessed checks that a peer cannot answer a call and then
// say that it was not processed: the client would make it again for ever.
func TestACallThatWasAnsweredIsNotUnprocessed(t *testing.T) {
	for name, answer := range map[string][]byte{
		"header":          literal(head, 1, 0),
		"message":         literal(msg, 1, 1),
		"half a message":  literal(begins, 1, 100, 1),
		"nothing of this": literal(head, 3, 0),
	} {
		for how, end := range map[string][]byte{
			"RESET": wire.AppendReset(nil, 1, wire.ResetUnprocessed, "not seen"),
			"DRAIN": wire.AppendDrain(nil, 0),
		} {
			t.Run(name+"/"+how, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s, peer := met(t, Options{Client: true}, nil)
					var calls []link.Stream
					for range 2 {
						st, err := s.NewStream(t.Context(), &link.CallHeader{Profile: &link.Profile{}})
						if err != nil {
							t.Fatal(err)
						}
						calls = append(calls, st)
					}
					synctest.Wait()
					peer.write(answer, end)
					var err error
					for err == nil {
						err = calls[0].Recv(&link.Frame{Sink: message.Sink{Dst: new([]byte), Codec: rawCodec, Limit: 100}})
					}
					if got, want := errors.Is(err, link.ErrUnprocessed), name == "nothing of this"; got != want {
						t.Errorf("it ends with %v, unprocessed: %v", err, got)
					}
				})
			})
		}
	}
}

// TestAnswersToCallsThatAreOverAreNone checks that a frame for a call that has ended does not
// count as an answer: a server can send one without handling any call.
func TestAnswersToCallsThatAreOverAreNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, peer := met(t, Options{Client: true}, nil)
		for i, want := range []bool{false, true} {
			if _, err := s.NewStream(t.Context(), &link.CallHeader{Profile: &link.Profile{}}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			id := uint64(1 + 2*i)
			if i == 0 {
				peer.write(wire.AppendReset(nil, id, wire.ResetUnprocessed, ""))
			}
			peer.write(literal(head, id, 0))
			if answered, _ := s.Outcome(); answered != want {
				t.Errorf("call %d: answered is %v", id, answered)
			}
		}
	})
}

// TestBlocksThatThePeerDoesNotTake checks that a block over the peer's limit fails on
// this side. The peer would reset the call, or end the connection.
func TestBlocksThatThePeerDoesNotTake(t *testing.T) {
	long := strings.Repeat("x", wire.MinBlock)
	t.Run("head", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s, peer := met(t, Options{Client: true}, nil)
			for _, o := range []*link.CallHeader{
				{Profile: &link.Profile{}, Metadata: metadata.MD{"k": {long}}},
				{Profile: &link.Profile{}, Metadata: metadata.MD{"k": strings.Split(long, "")}},
				{Profile: &link.Profile{}, Method: long},
				{Profile: &link.Profile{UserAgent: long}},
				{Profile: &link.Profile{Authority: long}},
			} {
				if _, err := s.NewStream(t.Context(), o); !errors.Is(err, link.ErrBroken) {
					t.Errorf("Open returns %v", err)
				}
			}
			if n := len(peer.of(wire.KindStream)); n > 0 {
				t.Errorf("%d frames were sent", n)
			}
			empty(t, s)
		})
	})
	t.Run("header and end", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			details := status.New(codes.NotFound, "no").Proto()
			details.Details = nil
			withDetails, err := status.FromProto(details).WithDetails(status.New(codes.NotFound, long).Proto())
			if err != nil {
				t.Fatal(err)
			}
			for name, end := range map[string]*link.End{
				"trailer": {Trailer: metadata.MD{"k": {long}}},
				"message": {Status: status.New(codes.NotFound, long)},
				"details": {Status: withDetails},
			} {
				w := &witness{}
				s, peer := met(t, Options{}, w)
				peer.write(opened(1))
				st := w.first(t)
				if err := st.Send(&link.Frame{Header: metadata.MD{"k": {long}}}); !errors.Is(err, link.ErrBroken) {
					t.Errorf("Send returns %v", err)
				}
				if err := st.Send(&link.Frame{End: end}); !errors.Is(err, link.ErrBroken) {
					t.Errorf("Send returns %v", err)
				}
				resets := peer.of(wire.KindReset)
				if len(resets) != 1 || len(peer.of(wire.KindStream)) > 0 {
					t.Fatalf("%s: %d resets", name, len(resets))
				}
				if code, text, _ := wire.ParseReset(resets[0].Body); code != wire.ResetProtocol || text == "" {
					t.Errorf("%s: code %d, %q", name, code, text)
				}
				empty(t, s)
			}
		})
	})
}

func TestAPeerThatNeverReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		s, _ := lone(t, Options{Client: true, CloseTimeout: time.Minute}, nil, true)
		st, err := s.NewStream(t.Context(), &link.CallHeader{Profile: &link.Profile{}})
		if err != nil {
			t.Fatal(err)
		}
		sent := make(chan error)
		go func() {
			var err error
			for err == nil {
				err = st.Send(&link.Frame{Msg: ofBytes(10_000), HasMsg: true})
			}
			sent <- err
		}()
		synctest.Wait()
		reason := errors.New("enough")
		st.Abort(reason)
		if err := <-sent; err != reason {
			t.Errorf("Send returns %v", err)
		}
		for range 1000 { // these must leave nothing behind
			st, err := s.NewStream(t.Context(), &link.CallHeader{Profile: &link.Profile{}})
			if err != nil {
				t.Fatal(err)
			}
			st.Abort(reason)
		}
		empty(t, s)
		if n := len(s.writing.control); n > 100 {
			t.Errorf("%d bytes wait for calls that were never made", n)
		}
		_ = s.Close(reason)
		_ = s.Close(reason)
		if !link.IsClosed(s.Ended()) {
			t.Error("Close waits")
		}
		<-s.Gone()
		if took := time.Since(began); took != time.Minute {
			t.Errorf("it took %v", took)
		}
	})
}

// TestCreditForCallsThatWaitForTheConnections checks that a CREDIT of a call does not
// queue it a second time while it waits for the connection's credit.
func TestCreditForCallsThatWaitForTheConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &witness{}
		s, peer := met(t, Options{}, w)
		peer.write(opened(1), opened(3))
		for _, st := range []link.Stream{w.first(t), w.streams[1]} {
			if err := st.Send(&link.Frame{Msg: ofBytes(wire.MinWindow), HasMsg: true}); err != nil {
				t.Fatal(err)
			}
		}
		peer.write(bytes.Repeat(wire.AppendCredit(nil, 3, 1), 1000), bytes.Repeat(wire.AppendCredit(nil, 1, 1), 1000))
		n := 0
		for st := s.writing.starved.first; st != nil; st = st.next {
			n++
		}
		if n != 2 || s.writing.connOut != 0 {
			t.Errorf("%d calls wait for the connection's credit, of which there is %d", n, s.writing.connOut)
		}
		w.streams[0].Abort(errors.New("enough"))
		peer.write(wire.AppendCredit(nil, 0, 2*wire.MinWindow))
		if s.writing.starved.first != nil || s.writing.ready.first != nil || w.streams[1].(*stream).out != nil {
			t.Error("a message is stuck")
		}
	})
}

func TestCallsThatThePeerNeverSawAreUnprocessed(t *testing.T) {
	for name, end := range map[string]func(peer *raw){
		"hang-up":        func(*raw) {},
		"protocol error": func(peer *raw) { _, _ = peer.conn.Write(append(start(), 0, 0)) },
		"bye":            func(peer *raw) { _, _ = peer.conn.Write(wire.AppendBye(start(), 0, "")) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, peer := lone(t, Options{Client: true}, nil, true)
				var reasons [2]error
				for i := range reasons {
					if i == 0 {
						// The writer has the first call in a batch with HELLO, and is
						// blocked.
						if _, err := io.ReadFull(peer.conn, make([]byte, len(wire.Magic))); err != nil {
							t.Fatal(err)
						}
					}
					st, err := s.NewStream(t.Context(), &link.CallHeader{Profile: &link.Profile{}})
					if err != nil {
						t.Fatal(err)
					}
					st.OnAbort(func(err error) { reasons[i] = err })
					if i == 0 {
						hello := make([]byte, 2)
						_, _ = io.ReadFull(peer.conn, hello)
						_, _ = io.ReadFull(peer.conn, make([]byte, hello[0]))
						synctest.Wait()
					}
				}
				end(peer)
				_ = peer.conn.Close()
				<-s.Gone()
				if reasons[0] == nil || errors.Is(reasons[0], link.ErrUnprocessed) {
					t.Errorf("the first ends with %v", reasons[0])
				}
				var u link.Unprocessed
				if !errors.As(reasons[1], &u) || !u.Unsent {
					t.Errorf("the second ends with %v, which does not say that it was not sent", reasons[1])
				}
			})
		})
	}
}

func TestSessionsThatAreClosedBeforeTheyStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := net.Pipe()
		s, w := newSession(a, Options{}), &witness{}
		reason := errors.New("stopping")
		_ = s.Close(reason)
		s.Start(w)
		<-s.Gone()
		if len(w.closed) != 1 || w.closed[0] != reason {
			t.Errorf("closed for %v", w.closed)
		}
		_ = b.Close()
	})
}
