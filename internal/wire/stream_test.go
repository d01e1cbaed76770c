package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nearcall/nearcall/internal/link"
)

var profile = &link.Profile{Authority: "host", UserAgent: "nearcall-go/0"}

func open(method string, md metadata.MD) *link.CallHeader {
	return &link.CallHeader{Method: method, Profile: profile, Metadata: md}
}

// frames splits b, which must consist of whole frames.
func frames(t testing.TB, b []byte) (all []Frame) {
	t.Helper()
	for len(b) > 0 {
		f, n, err := Next(b)
		if err != nil || n == 0 {
			t.Fatalf("after %d frames: %d bytes left, %v", len(all), len(b), err)
		}
		all = append(all, f)
		b = b[n:]
	}
	return all
}

// A heard is everything that one side of a call has received from the other.
type heard struct {
	Method    string
	Profile   link.Profile
	Timeout   time.Duration
	Metadata  string
	Header    string
	Messages  []string
	HalfClose bool
	Status    string
	Details   int
	Trailer   string
}

// A listen is a receiver without limits.
type listen struct {
	testing.TB
	dec        Decoder
	fromCaller bool
	parts      []byte
	size       int
	message    []byte
	cost       int
	heard      heard
}

func (l *listen) frame(f Frame) {
	l.Helper()
	if f.Kind == KindPart {
		l.parts = append(l.parts, f.Body...)
		return
	}
	rc, err := l.dec.Stream(f, l.parts, l.fromCaller)
	if err != nil {
		l.Fatalf("frame %#x, %d bytes: %v", byte(f.Kind), len(f.Body), err)
	}
	l.parts = nil
	l.hear(rc)
}

func (l *listen) hear(rc Received) {
	h := &l.heard
	if rc.Open != nil {
		h.Method, h.Profile, h.Timeout, h.Metadata = rc.Open.Method, *rc.Open.Profile, rc.Timeout, show(rc.Open.Sent())
	}
	if rc.Header != nil {
		h.Header = show(rc.Header)
	}
	if rc.Begins {
		l.size, l.message = rc.Size, nil
		l.cost += MessageCost
	}
	if rc.Begins || rc.Goes {
		l.message = append(l.message, rc.Data...)
		l.cost += len(rc.Data)
		if !rc.More {
			if len(l.message) != l.size {
				l.Fatalf("a message of %d bytes has %d", l.size, len(l.message))
			}
			h.Messages = append(h.Messages, string(l.message))
		}
	}
	h.HalfClose = h.HalfClose || rc.HalfClose
	if rc.End != nil {
		h.Status = fmt.Sprint(rc.End.Status.Code(), rc.End.Status.Message())
		h.Details = len(rc.End.Status.Details())
		h.Trailer = show(rc.End.Trailer)
	}
}

func show(md metadata.MD) string { return fmt.Sprintf("%d %q", len(md), md) }

func TestAUnaryCallIsOneFrameEachWay(t *testing.T) {
	var there, back Encoder
	request := &Step{Stream: 1, Open: open("/p.S/M", metadata.Pairs("k", "v")), HasMessage: true, Message: []byte("ping"), HalfClose: true}
	reply := &Step{Stream: 1, Header: metadata.MD{}, HasMessage: true, Message: []byte("pong"), End: &link.End{}}
	for i := range 2 {
		b, cost := there.Append(nil, request, 1000)
		if all := frames(t, b); len(all) != 1 || cost != 9 || !request.Done() {
			t.Fatalf("the request is %d frames, takes %d, done %v", len(all), cost, request.Done())
		}
		a, _ := back.Append(nil, reply, 1000)
		if all := frames(t, a); len(all) != 1 || !reply.Done() {
			t.Fatalf("the reply is %d frames, done %v", len(all), reply.Done())
		}
		// Names and profile are sent only once.
		if i == 1 && (len(b)-4 > 11 || len(a)-4 > 8) {
			t.Errorf("beside its messages a further call takes %d and %d bytes", len(b)-4, len(a)-4)
		}
		request = &Step{Stream: 3, Open: open("/p.S/M", metadata.Pairs("k", "v")), HasMessage: true, Message: []byte("ping"), HalfClose: true}
		reply = &Step{Stream: 3, Header: metadata.MD{}, HasMessage: true, Message: []byte("pong"), End: &link.End{}}
	}
}

// random returns a random step, and what its receiver should get.
func random(r *rand.Rand, fromCaller bool) (*Step, heard) {
	text := func(most int) string {
		b := make([]byte, r.IntN(most+1))
		for i := range b {
			b[i] = byte(' ' + r.IntN(95))
		}
		return string(b)
	}
	size := func() int { return []int{0, 1, 100, 3000, 40000, 66000, 200000}[r.IntN(7)] }
	md := func() metadata.MD {
		out := metadata.MD{}
		for range r.IntN(4) {
			k := fmt.Sprint("key-", r.IntN(2000))
			if r.IntN(9) == 0 {
				k = strings.Repeat("k", 300)
			}
			out[k] = append(out[k], text(size()/(1+r.IntN(20))))
		}
		if r.IntN(2) == 0 {
			out["raw-bin"] = []string{"\x00\xff"}
		}
		return out
	}
	s, h := &Step{Stream: 1}, heard{}
	if r.IntN(3) > 0 {
		s.HasMessage, s.Message = true, bytes.Repeat([]byte{byte(r.IntN(256))}, size())
		h.Messages = []string{string(s.Message)}
		s.Compressed = r.IntN(2) == 0
	}
	if fromCaller {
		if r.IntN(4) > 0 {
			o := open(fmt.Sprint("/service/", r.IntN(2000)), md())
			if r.IntN(2) == 0 {
				o.Profile = &link.Profile{Authority: fmt.Sprint(r.IntN(400)), UserAgent: text(300)}
			}
			s.Open, s.Timeout = o, time.Duration(r.IntN(5))*time.Millisecond
			h.Method, h.Profile, h.Timeout, h.Metadata = o.Method, *o.Profile, s.Timeout, show(o.Metadata)
		}
		s.HalfClose = r.IntN(2) == 0
		h.HalfClose = s.HalfClose
		if s.Open != nil && len(s.Open.Metadata) == 0 {
			h.Metadata = show(nil)
		}
		return s, h
	}
	if r.IntN(2) == 0 {
		s.Header = md()
		h.Header = show(s.Header)
	}
	if r.IntN(2) == 0 {
		s.End = &link.End{Trailer: md()}
		if r.IntN(2) == 0 {
			s.End.Status = status.New(codes.Code(1+r.IntN(16)), text(2000))
			if r.IntN(2) == 0 {
				s.End.Status, _ = s.End.Status.WithDetails(durationpb.New(time.Second))
			}
		}
		h.Status = fmt.Sprint(s.End.Status.Code(), s.End.Status.Message())
		h.Details, h.Trailer = len(s.End.Status.Details()), show(s.End.Trailer)
		if len(s.End.Trailer) == 0 {
			h.Trailer = show(nil)
		}
	}
	return s, h
}

func TestWhatIsAppendedArrives(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 0))
		fromCaller := seed%2 == 0
		var e Encoder
		l := &listen{TB: t, fromCaller: fromCaller}
		for range 60 {
			s, want := random(r, fromCaller)
			l.heard, l.cost = heard{}, 0
			spent := 0
			for n := 0; !s.Done(); n++ {
				if n > 10_000 {
					t.Fatalf("no end is in sight of %+v", s)
				}
				credit := r.IntN(100_000)
				b, cost := e.Append([]byte("before"), s, credit)
				if !bytes.HasPrefix(b, []byte("before")) || cost > credit || cost < 0 {
					t.Fatalf("of a credit of %d it takes %d, and leaves %.10q", credit, cost, b)
				}
				spent += cost
				all := frames(t, b[6:])
				for i, f := range all {
					if (f.Kind == KindPart) != (i < len(all)-1) {
						t.Fatalf("frame %d of %d is of kind %#x", i, len(all), byte(f.Kind))
					}
					l.frame(f)
				}
			}
			if spent != l.cost {
				t.Fatalf("it took a credit of %d, what arrived of %d", spent, l.cost)
			}
			if !reflect.DeepEqual(l.heard, want) {
				t.Fatalf("seed %d:\ngot  %.300q\nwant %.300q", seed, fmt.Sprint(l.heard), fmt.Sprint(want))
			}
		}
		if l.dec.table != e.table || len(l.dec.names) != len(e.names) || len(l.dec.profiles) != len(e.profiles) {
			t.Errorf("%d names of %d, %d profiles of %d, %d bytes of %d", len(l.dec.names), len(e.names), len(l.dec.profiles), len(e.profiles), l.dec.table.size, e.table.size)
		}
	}
}

// TestWithoutCreditNothingButTheMessageWaits checks that the head of a call is sent
// without credit, so that its handler can start.
func TestWithoutCreditNothingButTheMessageWaits(t *testing.T) {
	var e Encoder
	s := &Step{Stream: 1, Open: open("/p.S/M", nil), HasMessage: true, Message: []byte("abc"), HalfClose: true}
	b, cost := e.Append(nil, s, MessageCost)
	l := &listen{TB: t, fromCaller: true}
	for _, f := range frames(t, b) {
		l.frame(f)
	}
	if cost != 0 || l.heard.Method == "" || l.heard.HalfClose || s.Done() {
		t.Fatalf("it took %d, and %+v arrived", cost, l.heard)
	}
	if b, cost := e.Append(nil, s, MessageCost); len(b) != 0 || cost != 0 {
		t.Fatalf("again: %d bytes, %d of credit", len(b), cost)
	}
	b, cost = e.Append(nil, s, MessageCost+1)
	if cost != MessageCost+1 || s.Done() {
		t.Fatalf("with credit for a byte it took %d", cost)
	}
	b, _ = e.Append(b, s, 2)
	for _, f := range frames(t, b) {
		l.frame(f)
	}
	if !s.Done() || !slices.Equal(l.heard.Messages, []string{"abc"}) || !l.heard.HalfClose {
		t.Errorf("%+v arrived", l.heard)
	}
	empty := &Step{Stream: 1, HasMessage: true}
	if b, _ := e.Append(nil, empty, MessageCost-1); len(b) > 0 || empty.Done() {
		t.Error("an empty message is sent without credit")
	}
}

// stream returns a STREAM frame with the given flags.
func stream(flags Kind, body ...byte) Frame {
	return Frame{Kind: KindStream | flags, Stream: 1, Body: body}
}

func TestAMalformedStreamFrameIsAProtocolError(t *testing.T) {
	head := []byte{1, 1, 'm', 0, 0, 0, 0, 0, 0, 0}
	for name, c := range map[string]struct {
		f      Frame
		before []byte
		callee bool
	}{
		"no flags":                    {f: stream(0)},
		"place where there is none":   {f: stream(FlagMessage|FlagPlace, 5, 5)},
		"message and piece":           {f: stream(FlagMessage|FlagPiece, 1)},
		"more of nothing":             {f: stream(FlagMore)},
		"more after the end":          {f: stream(FlagMessage|FlagMore|FlagEnd, 9, 1)},
		"compressed piece":            {f: stream(FlagPiece|FlagCompressed, 1)},
		"piece of nothing":            {f: stream(FlagPiece)},
		"first piece of nothing":      {f: stream(FlagMessage|FlagMore, 9)},
		"first piece of all":          {f: stream(FlagMessage|FlagMore, 1, 1)},
		"first piece without a size":  {f: stream(FlagMessage | FlagMore)},
		"half-close with a body":      {f: stream(FlagEnd, 0)},
		"head with a body behind it":  {f: stream(FlagHead, append(slices.Clone(head), 1)...)},
		"head cut short":              {f: stream(FlagHead, head[:5]...)},
		"parts before a message":      {f: stream(FlagMessage, 1), before: head},
		"parts before a half-close":   {f: stream(FlagEnd), before: head},
		"new name in parts":           {f: stream(FlagHead), before: []byte{0, 1, 'm', 0, 0, 0, 0, 0, 0, 0}},
		"unknown name":                {f: stream(FlagHead, 2, 0, 0, 0, 0, 0, 0, 0)},
		"unknown profile":             {f: stream(FlagHead, 1, 1, 'm', 1, 0, 0)},
		"more metadata than bytes":    {f: stream(FlagHead, 100), callee: true},
		"number that is too large":    {f: stream(FlagHead, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f), callee: true},
		"number in two bytes for one": {f: stream(FlagHead, 0x80, 0), callee: true},
		"number that does not end":    {f: stream(FlagHead, bytes.Repeat([]byte{0x80}, 20)...), callee: true},
		"status without a message":    {f: stream(FlagEnd, 5), callee: true},
	} {
		t.Run(name, func(t *testing.T) {
			var d Decoder
			if rc, err := d.Stream(c.f, c.before, !c.callee); !errors.Is(err, ErrProtocol) {
				t.Errorf("%+v, %v", rc, err)
			}
		})
	}
}

// TestWhatIsWrongWithACallIsNotAboutTheConnection checks that an invalid call is
// decoded to its end, so that both sides keep the same names and profiles, and that
// each call which refers to the invalid one is invalid, too.
func TestWhatIsWrongWithACallIsNotAboutTheConnection(t *testing.T) {
	p, _ := proto.Marshal(status.New(codes.NotFound, "").Proto())
	// head returns a head with the given method and profile, a new name, and a message
	// after it.
	head := func(method string, profile ...string) []byte {
		b := appendString([]byte{nameNew}, method)
		b = append(b, profileNew)
		for _, s := range profile {
			b = appendString(b, s)
		}
		return append(b, 0, 1, nameNew, 1, 'z', 1, 'v', 'm', 's', 'g')
	}
	for name, c := range map[string]struct {
		f      Frame
		callee bool
		want   string
	}{
		"method with a line feed":        {stream(FlagHead|FlagMessage, head("/a/b\n", "", "", "", "", "")...), false, "the method"},
		"method with a NUL":              {stream(FlagHead|FlagMessage, head("/a/\x00b", "", "", "", "", "")...), false, "the method"},
		"authority with a return":        {stream(FlagHead|FlagMessage, head("/a/b", "h\r", "", "", "", "")...), false, "the authority"},
		"user agent with a line feed":    {stream(FlagHead|FlagMessage, head("/a/b", "", "u\n", "", "", "")...), false, "the user agent"},
		"content subtype with a control": {stream(FlagHead|FlagMessage, head("/a/b", "", "", "\x7f", "", "")...), false, "the content subtype"},
		"encoding with a NUL":            {stream(FlagHead|FlagMessage, head("/a/b", "", "", "", "\x00", "")...), false, "the encoding"},
		"accepted encodings with a NUL":  {stream(FlagHead|FlagMessage, head("/a/b", "", "", "", "", "\x00")...), false, "accepted encodings"},
		"key in upper case":              {stream(FlagHead, 1, 1, 1, 'K', 0), true, "the key"},
		"empty key":                      {stream(FlagHead, 1, 1, 0, 0), true, "the key"},
		"reserved key":                   {stream(FlagHead, 1, 1, 2, ':', 'a', 0), true, "the key"},
		"value with a control":           {stream(FlagHead, 1, 1, 1, 'k', 1, 1), true, "a value"},
		"trailer with a control":         {stream(FlagEnd, 0, 1, 1, 1, 'k', 1, '\n'), true, "a value"},
		"status of a large code":         {stream(FlagEnd, 0x80, 0x80, 0x80, 0x80, 0x10, 0, 0, 0), true, "of code"},
		"status whose message is odd":    {stream(FlagEnd, 5, 1, 0xff, 0, 0), true, "UTF-8"},
		"status whose details are odd":   {stream(FlagEnd, 5, 0, 1, 0xff, 0), true, "details"},
		"details of another code":        {stream(FlagEnd, append(append([]byte{6, 0, byte(len(p))}, p...), 0)...), true, "details"},
	} {
		t.Run(name, func(t *testing.T) {
			var d Decoder
			rc, err := d.Stream(c.f, nil, !c.callee)
			if err != nil || rc.Wrong == nil || !strings.Contains(rc.Wrong.Error(), c.want) {
				t.Fatalf("%+v, %v", rc, err)
			}
			if c.callee {
				return
			}
			if string(rc.Data) != "msg" || len(d.names) != 2 || len(d.profiles) != 1 {
				t.Errorf("after it there is %q, and %d names and %d profiles are known", rc.Data, len(d.names), len(d.profiles))
			}
			// The next call refers to the same method and profile by number.
			rc, err = d.Stream(stream(FlagHead, nameFirst, 1, 0, 0), nil, true)
			if err != nil || rc.Wrong == nil || !strings.Contains(rc.Wrong.Error(), c.want) {
				t.Errorf("the next call: %+v, %v", rc, err)
			}
			// Another call refers to the name that came after them.
			rc, err = d.Stream(stream(FlagHead, append(append([]byte{nameLiteral}, 2, '/', 'x', profileNew), 0, 0, 0, 0, 0, 0, 1, nameFirst+1, 1, 'w')...), nil, true)
			if err != nil || rc.Wrong != nil || !slices.Equal(rc.Open.Sent()["z"], []string{"w"}) {
				t.Errorf("a good call: %+v, %v", rc, err)
			}
		})
	}
}

// TestStatusesOfAnyCodeArrive checks that codes which applications define are no
// protocol error, because that would end all calls of the connection.
func TestStatusesOfAnyCodeArrive(t *testing.T) {
	for _, code := range []codes.Code{codes.Canceled, 17, math.MaxInt32, math.MaxInt32 + 1, math.MaxUint32} {
		plain := status.New(code, "why")
		detailed, err := plain.WithDetails(durationpb.New(time.Second))
		if err != nil {
			t.Fatal(err)
		}
		for _, st := range []*status.Status{plain, detailed} {
			b, _ := new(Encoder).Append(nil, &Step{Stream: 1, End: &link.End{Status: st}}, 0)
			rc, err := new(Decoder).Stream(one(t, b), nil, false)
			if err != nil || rc.End.Status.Code() != code || len(rc.End.Status.Details()) != len(st.Details()) {
				t.Errorf("code %d becomes %+v, %v", code, rc.End, err)
			}
		}
	}
}

func TestALongNameIsNotRemembered(t *testing.T) {
	var d Decoder
	name := func(n int) Frame {
		return stream(FlagHead, append(append([]byte{1, 0}, appendString(nil, strings.Repeat("n", n))...), 0)...)
	}
	if _, err := d.Stream(name(maxName), nil, false); err != nil {
		t.Error(err)
	}
	if _, err := d.Stream(name(maxName+1), nil, false); !errors.Is(err, ErrProtocol) {
		t.Errorf("a long name: %v", err)
	}
}

func TestAFurtherCallAllocatesItsOwnOnly(t *testing.T) {
	var e Encoder
	var d Decoder
	buf := make([]byte, 0, 1000)
	step := &Step{}
	o, message := open("/p.S/M", nil), []byte("message")
	count := testing.AllocsPerRun(100, func() {
		*step = Step{Stream: 1, Open: o, HasMessage: true, Message: message, HalfClose: true}
		b, _ := e.Append(buf, step, 1000)
		f, _, err := Next(b)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := d.Stream(f, nil, true); err != nil {
			t.Fatal(err)
		}
	})
	if count > 1 { // a link.CallHeader is allocated
		t.Errorf("%v allocations", count)
	}
}

// TestAMessageInAPlace checks that a placed message shares a frame with the rest of its
// call if there is room and credit for a message of no bytes, however long it is.
// Otherwise it gets its own frame.
func TestAMessageInAPlace(t *testing.T) {
	const place, size = min(MaxUint, math.MaxInt), math.MaxInt / 4
	reply := func() *Step {
		return &Step{Stream: 1, Header: metadata.Pairs("h", "1"), HasMessage: true, Placed: true, Place: place, Size: size, End: &link.End{}}
	}
	var e Encoder
	d := Decoder{Places: true}
	s := reply()
	b, cost := e.Append(nil, s, MessageCost)
	rc, err := d.Stream(one(t, b), nil, false)
	if err != nil || cost != MessageCost+size || !s.Done() || !rc.Placed || !rc.Begins || rc.More || rc.Place != place || rc.Size != size || rc.Header == nil || rc.End == nil {
		t.Errorf("%+v, %v for %d", rc, err, cost)
	}
	s = reply()
	b, cost = e.Append(nil, s, MessageCost-1)
	rc, err = d.Stream(one(t, b), nil, false)
	if err != nil || cost != 0 || s.Done() || rc.Begins || rc.Header == nil || rc.End != nil {
		t.Errorf("without credit: %+v, %v for %d", rc, err, cost)
	}
	for n := MaxFrame - 60; n < MaxFrame+10; n++ {
		s := &Step{Stream: 1, Open: open("/a/b", metadata.Pairs("k", strings.Repeat("v", n))), HasMessage: true, Placed: true, Place: place, Size: size, HalfClose: true}
		var e Encoder
		var b []byte
		for !s.Done() {
			b, _ = e.Append(b, s, 1000)
		}
		d := Decoder{Places: true}
		var parts []byte
		opened, placed, closed := 0, 0, 0
		for _, f := range frames(t, b) {
			if f.Kind == KindPart {
				parts = append(parts, f.Body...)
				continue
			}
			rc, err := d.Stream(f, parts, true)
			if err != nil {
				t.Fatalf("beside %d bytes: %v", n, err)
			}
			parts = nil
			if rc.Open != nil {
				opened++
			}
			if rc.Placed && rc.Place == place && rc.Size == size {
				placed++
			}
			if rc.HalfClose {
				closed++
			}
		}
		if opened != 1 || placed != 1 || closed != 1 {
			t.Fatalf("beside %d bytes: opened %d times, a message %d times, closed %d times", n, opened, placed, closed)
		}
	}
}

// A peer may claim that a placed message has any size and any place. What its receiver computes with
// them fits an int.
func TestAPlacedMessageOfAnySize(t *testing.T) {
	for _, size := range []uint64{MinPlace, 1 << 30, 1<<31 - 1, 1<<32 - 1, 1 << 32, MaxUint} {
		b := binary.AppendUvarint(binary.AppendUvarint(beginFrame(nil, KindStream|FlagMessage|FlagPlace, 1), size), MaxUint)
		d := Decoder{Block: 1 << 20, Places: true}
		rc, err := d.Stream(one(t, finishFrame(b, 0)), nil, true)
		if err != nil || rc.Size > math.MaxInt/2 || uint64(rc.Size) != min(size, math.MaxInt/2) || rc.Place < 0 {
			t.Errorf("%d bytes: %+v, %v", size, rc, err)
		}
	}
}
