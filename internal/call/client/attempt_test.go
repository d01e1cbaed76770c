package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/nearcall/nearcall/internal/call"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/testing/callservice"
)

var (
	errUnseen = link.Unprocessed{Err: errors.New("going away")}
	errUnsent = link.Unprocessed{Err: errors.New("between two connections"), Unsent: true}
)

// A doomed session's streams are aborted for reason without a handler having seen them.
type doomed struct {
	callservice.Distant
	refuse bool  // NewStream fails
	early  bool  // the abort comes before OnAbort is set
	sends  int   // how many sends succeed
	late   bool  // the abort follows the last of these, rather than fail the next
	recv   bool  // the abort comes in Recv
	header bool  // a header comes before the abort
	ends   bool  // the session ends with its first abort
	reason error // errUnseen if nil

	slowSend chan struct{} // Send waits for it and then succeeds
	slowRecv chan struct{} // Recv waits for it and then returns a header

	done   chan struct{}
	opened []*doomedStream
	opens  []*link.CallHeader
}

func (s *doomed) Done() <-chan struct{} {
	if s.done == nil {
		s.done = make(chan struct{})
	}
	return s.done
}

func (s *doomed) why() error {
	switch {
	case s.reason != nil:
		return s.reason
	case s.refuse:
		return errUnsent
	}
	return errUnseen
}

func (s *doomed) NewStream(_ context.Context, o *link.CallHeader) (link.Stream, error) {
	s.opens = append(s.opens, o)
	if s.refuse {
		s.Done()
		if !link.IsClosed(s.done) {
			close(s.done)
		}
		return nil, s.why()
	}
	st := &doomedStream{session: s, dead: make(chan struct{}), left: s.sends, header: s.header}
	s.opened = append(s.opened, st)
	if s.early {
		st.Abort(s.why())
	}
	return st, nil
}

type doomedStream struct {
	link.Stream
	session *doomed
	dead    chan struct{}

	mu      sync.Mutex
	left    int
	header  bool
	reason  error
	onAbort func(error)
}

func (st *doomedStream) Send(*link.Frame) error {
	if c := st.session.slowSend; c != nil {
		<-c
		return nil
	}
	st.mu.Lock()
	st.left--
	left, reason := st.left, st.reason
	st.mu.Unlock()
	if reason != nil {
		return reason
	}
	if left < 0 && !st.session.recv || left == 0 && st.session.late {
		st.Abort(st.session.why())
		if left < 0 {
			return st.session.why()
		}
	}
	return nil
}

func (st *doomedStream) Recv(f *link.Frame) error {
	f.Reset()
	if c := st.session.slowRecv; c != nil {
		<-c
		f.Header = metadata.MD{"from": {"the first attempt"}}
		return nil
	}
	st.mu.Lock()
	header := st.header
	st.header = false
	st.mu.Unlock()
	if header {
		f.Header = metadata.MD{}
		return nil
	}
	if st.session.recv {
		st.Abort(st.session.why())
	}
	<-st.dead
	return st.reason
}

func (st *doomedStream) Abort(reason error) {
	st.mu.Lock()
	if st.reason != nil {
		st.mu.Unlock()
		return
	}
	st.reason = reason
	f := st.onAbort
	st.mu.Unlock()
	if s := st.session; s.ends {
		s.Done()
		close(s.done)
	}
	close(st.dead)
	if f != nil {
		f(reason)
	}
}

func (st *doomedStream) OnAbort(f func(error)) {
	st.mu.Lock()
	st.onAbort = f
	reason := st.reason
	st.mu.Unlock()
	if reason != nil {
		f(reason)
	}
}

// inTurn is a Sessions that returns each session once, and then none.
type inTurn struct {
	sessions []link.Session
	asked    atomic.Int32
	waiting  []bool       // waitForReady of each Pick
	wait     bool         // wait forever if there is no session left
	parked   atomic.Int32 // number of calls that wait
}

func (s *inTurn) Pick(ctx context.Context, waitForReady bool) (link.Session, error) {
	n := int(s.asked.Add(1))
	s.waiting = append(s.waiting, waitForReady)
	if n <= len(s.sessions) {
		return s.sessions[n-1], nil
	}
	if s.wait {
		s.parked.Add(1)
		<-ctx.Done()
		return nil, call.ContextStatus(ctx.Err())
	}
	return nil, status.Error(codes.Unavailable, "no further session")
}

// retrying returns a client whose attempts use sessions in order and then, unless only is
// set, a session with a server that has the handlers h.
func retrying(t testing.TB, h handlers, only bool, cc func(*clientSetup), sessions ...link.Session) (*Client, *inTurn) {
	t.Helper()
	in := &inTurn{sessions: sessions}
	b := start(t, h, nil, func(c *clientSetup) {
		if cc != nil {
			cc(c)
		}
	})
	if !only {
		in.sessions = append(in.sessions, callservice.Distant{Session: b.session})
	}
	cfg := b.cfg
	cfg.Sessions = in
	return New(b.opts, cfg), in
}

// A finish counts how often a call has ended.
type finish struct {
	n   atomic.Int32
	mu  sync.Mutex
	err error
}

func (f *finish) option() grpc.CallOption {
	return grpc.OnFinish(func(err error) {
		f.n.Add(1)
		f.mu.Lock()
		f.err = err
		f.mu.Unlock()
	})
}

func (f *finish) want(t testing.TB, code codes.Code) {
	t.Helper()
	if n := f.n.Load(); n != 1 {
		t.Errorf("OnFinish was called %d times", n)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	callservice.WantCode(t, f.err, code)
}

// moments returns sessions for every moment at which a call with sends sends can be
// refused.
func moments(sends int) map[string]func() *doomed {
	m := map[string]func() *doomed{
		"in Open":        func() *doomed { return &doomed{refuse: true} },
		"before OnAbort": func() *doomed { return &doomed{early: true} },
		"in Recv":        func() *doomed { return &doomed{recv: true} },
	}
	for i := range sends {
		m[fmt.Sprintf("in send %d", i)] = func() *doomed { return &doomed{sends: i} }
		m[fmt.Sprintf("after send %d", i)] = func() *doomed { return &doomed{sends: i + 1, late: true} }
	}
	return m
}

func TestStreamsAreMadeAgainWheneverTheyAreRefused(t *testing.T) {
	const messages = 3
	ways := map[string]func(cs grpc.ClientStream, send func(int)) []string{
		"send all, then receive": func(cs grpc.ClientStream, send func(int)) []string {
			for i := range messages {
				send(i)
			}
			_ = cs.CloseSend()
			return drain(t, cs)
		},
		"header first": func(cs grpc.ClientStream, send func(int)) []string {
			for i := range messages {
				send(i)
			}
			_ = cs.CloseSend()
			if md, err := cs.Header(); md == nil || err != nil {
				t.Errorf("header %v, %v", md, err)
			}
			return drain(t, cs)
		},
		"receive while sending": func(cs grpc.ClientStream, send func(int)) (got []string) {
			done := make(chan struct{})
			go func() {
				got = drain(t, cs)
				close(done)
			}()
			for i := range messages {
				send(i)
			}
			_ = cs.CloseSend()
			<-done
			return got
		},
	}
	for way, run := range ways {
		for moment, session := range moments(messages + 1) {
			t.Run(way+", "+moment, func(t *testing.T) {
				c, in := retrying(t, handlers{}, false, nil, session())
				var f finish
				cs, err := c.NewStream(t.Context(), streamDesc, streamMethod, f.option())
				if err != nil {
					t.Fatal(err)
				}
				m := new(msg)
				got := run(cs, func(i int) {
					m.Value = fmt.Appendf(m.Value[:0], "message %d", i) // overwrites the last message
					if err := cs.SendMsg(m); err != nil {
						t.Errorf("send %d: %v", i, err)
					}
				})
				if want := []string{"message 0", "message 1", "message 2"}; !slices.Equal(got, want) {
					t.Errorf("received %q", got)
				}
				f.want(t, codes.OK)
				if n := in.asked.Load(); n != 2 {
					t.Errorf("%d attempts", n)
				}
			})
		}
	}
}

// drain receives until the end, which must be io.EOF.
func drain(t *testing.T, cs grpc.ClientStream) (got []string) {
	for {
		m := new(msg)
		err := cs.RecvMsg(m)
		if err == io.EOF {
			return got
		}
		if err != nil {
			t.Error(err)
			return got
		}
		got = append(got, string(m.Value))
	}
}

func TestHowOftenACallIsMadeAgain(t *testing.T) {
	refused := func() link.Session { return &doomed{refuse: true} }
	aborted := func() link.Session { return &doomed{recv: true, sends: 9} }
	drained := func() link.Session { return &doomed{recv: true, sends: 9, ends: true} }
	unsent := func() link.Session { return &doomed{recv: true, sends: 9, reason: errUnsent} }
	replay := func() link.Session { return &doomed{ends: true, reason: errUnsent} }
	away := func() link.Session { return &busy{doomed{reason: errUnsent}} }
	for name, c := range map[string]struct {
		sessions []link.Session
		want     codes.Code
		attempts int32
	}{
		"refused many times":                       {[]link.Session{refused(), refused(), refused(), refused()}, codes.OK, 5},
		"aborted once":                             {[]link.Session{aborted()}, codes.OK, 2},
		"aborted twice":                            {[]link.Session{aborted(), aborted()}, codes.Unavailable, 2},
		"refused, then aborted":                    {[]link.Session{refused(), aborted()}, codes.Unavailable, 2}, // as in grpc-go
		"aborted, then refused":                    {[]link.Session{aborted(), refused(), refused()}, codes.OK, 4},
		"aborted by a session that ends":           {[]link.Session{drained()}, codes.OK, 2},
		"aborted by sessions that end":             {[]link.Session{drained(), drained(), drained()}, codes.Unavailable, 2}, // as in grpc-go
		"aborted, then unsent in its replay":       {[]link.Session{drained(), replay(), replay()}, codes.OK, 4},
		"by one that ends, then one that does not": {[]link.Session{refused(), drained(), aborted()}, codes.Unavailable, 2},
		"refused and not closing":                  {[]link.Session{&busy{}}, codes.Unavailable, 1},
		"unsent by sessions that go on":            {[]link.Session{unsent(), unsent(), unsent()}, codes.OK, 4},
		"refused and not sent":                     {[]link.Session{away(), away(), away()}, codes.OK, 4},
		"unsent, then aborted":                     {[]link.Session{unsent(), aborted()}, codes.Unavailable, 2}, // as in grpc-go
		"for another reason":                       {[]link.Session{&doomed{recv: true, sends: 9, reason: errors.New("lost")}}, codes.Unavailable, 1},
	} {
		for kind, call := range map[string]func(*Client, ...grpc.CallOption) error{"unary": invokes, "stream": streams} {
			t.Run(name+", "+kind, func(t *testing.T) {
				for _, s := range c.sessions {
					if d, ok := s.(*doomed); ok {
						d.done = nil
					}
				}
				client, in := retrying(t, handlers{}, false, nil, c.sessions...)
				var f finish
				callservice.WantCode(t, call(client, f.option()), c.want)
				f.want(t, c.want)
				if n := in.asked.Load(); n != c.attempts {
					t.Errorf("%d attempts, want %d", n, c.attempts)
				}
			})
		}
	}
}

// TestAnAttemptThatIsRefusedInItsReplay: the sender that replays an attempt retries it
// again if it is refused, and does not wait for anything to receive.
func TestAnAttemptThatIsRefusedInItsReplay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ending := func() link.Session { return &doomed{ends: true, reason: errUnsent} }
		client, in := retrying(t, handlers{}, false, nil, &doomed{sends: 1, ends: true}, ending(), ending())
		var f finish
		cs, err := client.NewStream(t.Context(), streamDesc, streamMethod, f.option())
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := cs.SendMsg(wrapperspb.Bytes([]byte("request"))); err != nil {
				t.Fatal(err)
			}
		}
		if err := echo(cs, []byte("request")); err != nil {
			t.Error(err)
		}
		f.want(t, codes.OK)
		if n := in.asked.Load(); n != 4 {
			t.Errorf("%d attempts, want 4", n)
		}
	})
}

// busy refuses all calls, and is not ending.
type busy struct{ doomed }

func (s *busy) NewStream(context.Context, *link.CallHeader) (link.Stream, error) { return nil, s.why() }

func invokes(c *Client, opts ...grpc.CallOption) error {
	return c.Invoke(context.Background(), unaryMethod, wrapperspb.Bytes([]byte("request")), new(msg), opts...)
}

// streams sends one message on a stream and receives until the end.
func streams(c *Client, opts ...grpc.CallOption) error {
	cs, err := c.NewStream(context.Background(), streamDesc, streamMethod, opts...)
	if err != nil {
		return err
	}
	return echo(cs, []byte("request"))
}

func echo(cs grpc.ClientStream, b []byte) error {
	if err := cs.SendMsg(wrapperspb.Bytes(b)); err != nil && err != io.EOF {
		return err
	}
	_ = cs.CloseSend()
	for {
		if err := cs.RecvMsg(new(msg)); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
	}
}

func TestWhatCommitsACall(t *testing.T) {
	nothing := func(grpc.ClientStream) {}
	for name, c := range map[string]struct {
		session doomed
		size    int
		opts    []grpc.CallOption
		before  func(grpc.ClientStream)
		want    codes.Code
	}{
		"nothing":             {doomed{}, 10, nil, nothing, codes.OK},
		"a header":            {doomed{header: true}, 10, nil, nothing, codes.Unavailable},
		"the context":         {doomed{}, 10, nil, func(cs grpc.ClientStream) { cs.Context() }, codes.Unavailable},
		"the trailer":         {doomed{}, 10, nil, func(cs grpc.ClientStream) { cs.Trailer() }, codes.Unavailable},
		"too much":            {doomed{}, defaultMaxReplay, nil, nothing, codes.Unavailable},
		"not too much":        {doomed{}, defaultMaxReplay - 20, nil, nothing, codes.OK},
		"more than is wanted": {doomed{}, 10, []grpc.CallOption{grpc.MaxRetryRPCBufferSize(10)}, nothing, codes.Unavailable},
		"as much as wanted":   {doomed{}, 10, []grpc.CallOption{grpc.MaxRetryRPCBufferSize(17)}, nothing, codes.OK},
		"much, as is wanted":  {doomed{}, defaultMaxReplay, []grpc.CallOption{grpc.MaxRetryRPCBufferSize(2 * defaultMaxReplay)}, nothing, codes.OK},
	} {
		t.Run(name, func(t *testing.T) {
			session := &doomed{recv: true, sends: 9, header: c.session.header}
			client, _ := retrying(t, handlers{}, false, nil, session)
			cs, err := client.NewStream(t.Context(), streamDesc, streamMethod, c.opts...)
			if err != nil {
				t.Fatal(err)
			}
			c.before(cs)
			callservice.WantCode(t, echo(cs, make([]byte, c.size)), c.want)
			if c.before(cs); cs.Context().Err() == nil {
				t.Error("the context goes on")
			}
			if name == "a header" || name == "the context" || name == "the trailer" {
				return
			}
			session.recv = true
			client, _ = retrying(t, handlers{}, false, nil, &doomed{recv: true, sends: 9})
			callservice.WantCode(t, client.Invoke(t.Context(), unaryMethod, wrapperspb.Bytes(make([]byte, c.size)), new(msg), c.opts...), c.want)
		})
	}
}

// A remote is a doomed session with a shortcut for unary calls.
type remote struct {
	*doomed
	closed bool // it accepts no more calls
}

func (remote) Peer() *link.Peer { return &link.Peer{Caps: link.Caps{OneShot: true}} }

func (s remote) Invoke(context.Context, *link.UnaryCall) error {
	if s.Done(); s.closed && !link.IsClosed(s.done) {
		close(s.done)
	}
	return s.why()
}

func TestUnaryCallsInOneGoAreMadeAgain(t *testing.T) {
	open := func() link.Session { return remote{&doomed{}, false} }
	closed := func() link.Session { return remote{&doomed{refuse: true}, true} }
	unsent := func() link.Session { return remote{&doomed{reason: errUnsent}, false} }
	for name, c := range map[string]struct {
		sessions []link.Session
		want     codes.Code
	}{
		"by sessions that end":               {[]link.Session{closed(), closed(), closed()}, codes.OK},
		"once by one that goes on":           {[]link.Session{open()}, codes.OK},
		"twice by one that goes on":          {[]link.Session{open(), open()}, codes.Unavailable},
		"by sessions that send nothing":      {[]link.Session{unsent(), unsent(), unsent()}, codes.OK},
		"by one that ends, and then another": {[]link.Session{closed(), open()}, codes.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			client, _ := retrying(t, handlers{}, false, nil, c.sessions...)
			var f finish
			callservice.WantCode(t, invokes(client, f.option()), c.want)
			f.want(t, c.want)
		})
	}
	// Streams on this session are retried as on others.
	client, _ := retrying(t, handlers{}, false, nil, remote{&doomed{sends: 9, recv: true}, false})
	callservice.WantCode(t, streams(client), codes.OK)
}

func TestARetryThatFindsNoSession(t *testing.T) {
	for kind, call := range map[string]func(*Client, ...grpc.CallOption) error{"unary": invokes, "stream": streams} {
		t.Run(kind, func(t *testing.T) {
			client, _ := retrying(t, handlers{}, true, nil, &doomed{sends: 0})
			var f finish
			err := call(client, f.option())
			callservice.WantCode(t, err, codes.Unavailable)
			f.want(t, codes.Unavailable)
			if !strings.Contains(err.Error(), "no further session") {
				t.Error(err)
			}
		})
	}
}

// A call that waits for another session stops waiting for each reason that can end it.
func TestLeavingWhileACallWaitsForAnotherSession(t *testing.T) {
	for name, c := range map[string]struct {
		leave func(*Client, grpc.ClientStream, context.CancelFunc)
		want  codes.Code
	}{
		"cancelled": {func(_ *Client, _ grpc.ClientStream, cancel context.CancelFunc) { cancel() }, codes.Canceled},
		"deadline":  {func(*Client, grpc.ClientStream, context.CancelFunc) { time.Sleep(time.Hour) }, codes.DeadlineExceeded},
		"closed": {func(c *Client, _ grpc.ClientStream, _ context.CancelFunc) {
			c.Close(status.Error(codes.Canceled, "closing"))
		}, codes.Canceled},
		"misused": {func(_ *Client, cs grpc.ClientStream, _ context.CancelFunc) {
			go func() { callservice.WantCode(t, cs.SendMsg(new(msg)), codes.Internal) }()
			synctest.Wait()
		}, codes.Internal},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, in := retrying(t, handlers{}, true, nil, &doomed{early: true})
				in.wait = true
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				var f finish
				cs, err := client.NewStream(ctx, streamDesc, streamMethod, f.option(), grpc.WaitForReady(true))
				if err != nil {
					t.Fatal(err)
				}
				_ = cs.CloseSend()
				got := make(chan error)
				go func() { got <- cs.RecvMsg(new(msg)) }()
				synctest.Wait()
				if in.parked.Load() != 1 || f.n.Load() != 0 {
					t.Errorf("%d wait, %d have ended", in.parked.Load(), f.n.Load())
				}
				go c.leave(client, cs, cancel)
				err = <-got
				callservice.WantCode(t, err, c.want)
				time.Sleep(time.Millisecond) // as in grpc-go, another goroutine may have finished the call and call OnFinish
				f.want(t, c.want)
				if again := cs.RecvMsg(new(msg)); again == nil || again.Error() != err.Error() {
					t.Errorf("%v, and then %v", err, again)
				}
				if !slices.Equal(in.waiting, []bool{true, true}) {
					t.Errorf("WaitForReady: %v", in.waiting)
				}
				time.Sleep(2 * time.Hour)
			})
		})
	}
}

// A call that was aborted before it was committed ends, even if only its context is used
// afterwards.
func TestAContextThatIsAskedForAfterTheAbort(t *testing.T) {
	session := &doomed{sends: 9}
	client, _ := retrying(t, handlers{}, false, nil, session)
	var f finish
	cs, err := client.NewStream(t.Context(), streamDesc, streamMethod, f.option())
	if err != nil {
		t.Fatal(err)
	}
	session.opened[0].Abort(errUnseen)
	<-cs.Context().Done()
	f.want(t, codes.Unavailable)
	callservice.WantCode(t, cs.RecvMsg(new(msg)), codes.Unavailable)
}

// A journal is a stats handler that records its events.
type journal struct {
	mu      sync.Mutex
	entries []string
	tags    int
}

func (j *journal) note(s string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.entries = append(j.entries, s)
}

func (j *journal) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context {
	j.tags++
	return metadata.AppendToOutgoingContext(ctx, "tag", fmt.Sprint(j.tags))
}

func (j *journal) HandleRPC(_ context.Context, s stats.RPCStats) {
	switch s := s.(type) {
	case *stats.Begin:
		j.note(fmt.Sprintf("begin again=%v", s.IsTransparentRetryAttempt))
	case *stats.End:
		j.note(fmt.Sprintf("end %v", status.Code(s.Error)))
	case *stats.OutHeader:
		j.note(fmt.Sprintf("header tag=%v own=%v", s.Header["tag"], s.Header["own"]))
	case *stats.OutPayload:
		j.note(fmt.Sprintf("payload %d", s.Length))
	default:
		j.note(strings.TrimPrefix(fmt.Sprintf("%T", s), "*stats."))
	}
}

func (j *journal) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (j *journal) HandleConn(context.Context, stats.ConnStats)                       {}

// counting is credentials that count the requests for metadata.
type counting struct{ n atomic.Int32 }

func (c *counting) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"auth": fmt.Sprint(c.n.Add(1))}, nil
}
func (c *counting) RequireTransportSecurity() bool { return false }

func TestWhoIsToldOfEachAttempt(t *testing.T) {
	answer := []string{"InHeader", "InPayload", "InTrailer", "end OK"}
	attempt := func(n int, rest ...string) []string {
		return append([]string{
			fmt.Sprintf("begin again=%v", n > 1),
			fmt.Sprintf("header tag=[%d] own=[1]", n),
		}, rest...)
	}
	refused := []string{"begin again=false", "end Unavailable"}
	for name, c := range map[string]struct {
		session *doomed
		unary   bool
		want    []string
	}{
		"aborted, stream":  {&doomed{sends: 1}, false, append(attempt(1, "payload 9", "end Unavailable"), attempt(2, append([]string{"payload 9"}, answer...)...)...)},
		"aborted, unary":   {&doomed{sends: 1, late: true}, true, append(attempt(1, "payload 9", "end Unavailable"), attempt(2, append([]string{"payload 9"}, answer...)...)...)},
		"refused, stream":  {&doomed{refuse: true}, false, append(refused, attempt(2, append([]string{"payload 9"}, answer...)...)...)},
		"refused, unary":   {&doomed{refuse: true}, true, append(refused, attempt(2, append([]string{"payload 9"}, answer...)...)...)},
		"in send, unary":   {&doomed{sends: 0}, true, append(attempt(1, "end Unavailable"), attempt(2, append([]string{"payload 9"}, answer...)...)...)},
		"before, a stream": {&doomed{early: true}, false, append(attempt(1, "end Unavailable"), attempt(2, append([]string{"payload 9"}, answer...)...)...)},
	} {
		t.Run(name, func(t *testing.T) {
			var j journal
			var creds counting
			intercepted := 0
			client, _ := retrying(t, handlers{}, false, func(cc *clientSetup) {
				cc.ClientStats = []stats.Handler{&j}
				cc.PerRPC = []credentials.PerRPCCredentials{&creds}
				cc.ClientUnaryChain = []grpc.UnaryClientInterceptor{func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
					intercepted++
					return invoker(ctx, method, req, reply, conn, opts...)
				}}
				cc.ClientStreamChain = []grpc.StreamClientInterceptor{func(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
					intercepted++
					return streamer(ctx, desc, conn, method, opts...)
				}}
			}, c.session)
			j.entries = nil
			asked := int(creds.n.Load())
			own := metadata.MD{"own": {"1"}}
			ctx := metadata.NewOutgoingContext(t.Context(), own)
			request := wrapperspb.Bytes([]byte("request"))
			if c.unary {
				callservice.WantCode(t, client.Invoke(ctx, unaryMethod, request, new(msg)), codes.OK)
			} else {
				cs, err := client.NewStream(ctx, streamDesc, streamMethod)
				if err != nil {
					t.Fatal(err)
				}
				own["own"] = []string{"changed"} // the user may change it once the call has begun
				if err := cs.SendMsg(request); err != nil {
					t.Error(err)
				}
				request.Value = []byte("another")
				_ = cs.CloseSend()
				if got := drain(t, cs); !slices.Equal(got, []string{"request"}) {
					t.Errorf("received %q", got)
				}
			}
			if !slices.Equal(j.entries, c.want) {
				t.Errorf("told\n%s\nwant\n%s", strings.Join(j.entries, "\n"), strings.Join(c.want, "\n"))
			}
			headers := 0
			for _, entry := range j.entries {
				if strings.HasPrefix(entry, "header") {
					headers++
				}
			}
			if n := int(creds.n.Load()) - asked; n < headers {
				t.Errorf("credentials were asked %d times for %d headers", n, headers)
			}
			if intercepted != 1 {
				t.Errorf("interceptors ran %d times", intercepted)
			}
		})
	}
}

func TestAnotherAttemptHasTheSameDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second := &doomed{sends: 9}, &doomed{sends: 9}
		client, _ := retrying(t, handlers{}, true, nil, first, second)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		cs, err := client.NewStream(ctx, streamDesc, streamMethod)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		first.opened[0].Abort(errUnseen)
		callservice.WantCode(t, cs.RecvMsg(new(msg)), codes.DeadlineExceeded)
		if a, b := first.opens[0].Deadline, second.opens[0].Deadline; a.IsZero() || !a.Equal(b) {
			t.Errorf("deadlines %v and %v", a, b)
		}
	})
}

// A sender that waits for credit while another goroutine retries the call sends its
// message once.
func TestReplayWaitsForCredit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := &doomed{sends: 100}
		client, _ := retrying(t, handlers{Stream: func(ss grpc.ServerStream) error {
			time.Sleep(time.Minute) // the window is full by then
			for i := byte(0); ; i++ {
				m := new(msg)
				if err := ss.RecvMsg(m); err == io.EOF {
					if i != 6 {
						return status.Errorf(codes.DataLoss, "%d messages", i)
					}
					return nil
				} else if err != nil {
					return err
				}
				if !bytes.Equal(m.Value, bytes.Repeat([]byte{i}, 40<<10)) {
					return status.Errorf(codes.DataLoss, "message %d is another", i)
				}
			}
		}}, false, nil, first)
		cs, err := client.NewStream(t.Context(), streamDesc, streamMethod)
		if err != nil {
			t.Fatal(err)
		}
		for i := range byte(5) {
			if err := cs.SendMsg(wrapperspb.Bytes(bytes.Repeat([]byte{i}, 40<<10))); err != nil {
				t.Fatal(err)
			}
		}
		first.opened[0].Abort(errUnseen)
		got := make(chan error)
		go func() { got <- cs.RecvMsg(new(msg)) }()
		synctest.Wait() // it sends, and has no credit
		if err := cs.SendMsg(wrapperspb.Bytes(bytes.Repeat([]byte{5}, 40<<10))); err != nil {
			t.Error(err)
		}
		_ = cs.CloseSend()
		if err := <-got; err != io.EOF {
			t.Error(err)
		}
	})
}

// An operation does not count if its attempt was replaced before it succeeded.
func TestWhatComesTooLateDoesNotCount(t *testing.T) {
	late := func(t *testing.T, first *doomed, now chan struct{}) (header metadata.MD) {
		client, in := retrying(t, handlers{}, false, nil, first)
		cs, err := client.NewStream(t.Context(), streamDesc, streamMethod)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			if err := cs.SendMsg(wrapperspb.Bytes([]byte("request"))); err != nil {
				t.Error(err)
			}
			_ = cs.CloseSend()
		}()
		got := make(chan []string)
		go func() { got <- drain(t, cs) }()
		synctest.Wait() // one of them is held up
		if first.slowSend != nil {
			first.opened[0].Abort(errUnseen) // the other one retries the call
			synctest.Wait()
		}
		if n := in.asked.Load(); n != 2 {
			t.Errorf("%d attempts", n)
		}
		close(now)
		if got := <-got; !slices.Equal(got, []string{"request"}) {
			t.Errorf("received %q", got)
		}
		header, _ = cs.Header()
		return header
	}
	t.Run("a message that was sent", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			now := make(chan struct{})
			late(t, &doomed{slowSend: now}, now)
		})
	})
	t.Run("a header that was received", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			now := make(chan struct{})
			if md := late(t, &doomed{slowRecv: now}, now); md["from"] != nil {
				t.Errorf("header %v", md)
			}
		})
	})
}

// A call can be ended while its replay waits for credit.
func TestLeavingWhileAReplayWaitsForCredit(t *testing.T) {
	for name, leave := range map[string]func(*Client, *bed, context.CancelFunc){
		"cancelled": func(_ *Client, _ *bed, cancel context.CancelFunc) { cancel() },
		"closed":    func(c *Client, _ *bed, _ context.CancelFunc) { c.Close(status.Error(codes.Canceled, "closing")) },
		"lost": func(_ *Client, b *bed, _ context.CancelFunc) {
			_ = b.session.Close(status.Error(codes.Canceled, "the second session, too"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := start(t, handlers{Stream: func(ss grpc.ServerStream) error {
					<-ss.Context().Done()
					return nil
				}}, nil, nil)
				first := &doomed{sends: 100}
				cfg := b.cfg
				cfg.Sessions = &inTurn{sessions: []link.Session{first, callservice.Distant{Session: b.session}}}
				client := New(options.NewClient(nil), cfg)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				var f finish
				cs, err := client.NewStream(ctx, streamDesc, streamMethod, f.option())
				if err != nil {
					t.Fatal(err)
				}
				for range 5 {
					if err := cs.SendMsg(wrapperspb.Bytes(make([]byte, 40<<10))); err != nil {
						t.Fatal(err)
					}
				}
				first.opened[0].Abort(errUnseen)
				got, sent := make(chan error), make(chan error)
				go func() { got <- cs.RecvMsg(new(msg)) }()
				synctest.Wait() // it sends, and has no credit
				go func() { sent <- cs.SendMsg(new(msg)) }()
				synctest.Wait()
				leave(client, b, cancel)
				callservice.WantCode(t, <-got, codes.Canceled)
				if err := <-sent; err != io.EOF {
					t.Errorf("SendMsg: %v", err)
				}
				f.want(t, codes.Canceled)
				if len(client.streams) != 0 {
					t.Error("the client keeps the stream")
				}
			})
		})
	}
}

// A sender, a receiver, a session that ends and a user that cancels run concurrently. A
// call that is not cancelled transfers all its messages, in order and once.
func TestRetryRaces(t *testing.T) {
	const messages = 20
	for seed := range 300 {
		synctest.Test(t, func(t *testing.T) {
			first := &doomed{sends: 100}
			client, _ := retrying(t, handlers{}, false, nil, first)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var f finish
			cs, err := client.NewStream(ctx, streamDesc, streamMethod, f.option())
			if err != nil {
				t.Fatal(err)
			}
			leaves := seed%3 == 0
			var all sync.WaitGroup
			all.Go(func() { // the peer
				time.Sleep(time.Duration(seed%messages) * time.Millisecond)
				first.opened[0].Abort(errUnseen)
			})
			all.Go(func() {
				m := new(msg)
				for i := range messages {
					m.Value = append(m.Value[:0], byte(i))
					if err := cs.SendMsg(m); err != nil {
						if err != io.EOF || !leaves {
							t.Errorf("SendMsg: %v", err)
						}
						break
					}
					time.Sleep(time.Duration(seed%2) * time.Millisecond)
				}
				_ = cs.CloseSend()
			})
			all.Go(func() {
				if leaves {
					time.Sleep(time.Duration(seed/3%messages) * time.Millisecond)
					if seed%2 == 0 {
						cancel()
					} else {
						client.Close(status.Error(codes.Canceled, "closing"))
					}
				}
			})
			if seed%5 == 0 {
				all.Go(func() { _, _ = cs.Header() })
			}
			for i := 0; ; i++ {
				m := new(msg)
				err := cs.RecvMsg(m)
				if err == io.EOF && i == messages || status.Code(err) == codes.Canceled && leaves {
					break
				}
				if err != nil || len(m.Value) != 1 || m.Value[0] != byte(i) {
					t.Fatalf("seed %d: message %d is %v, %v", seed, i, m.Value, err)
				}
			}
			all.Wait()
			synctest.Wait()
			if f.n.Load() != 1 || len(client.streams) != 0 {
				t.Errorf("seed %d: ended %d times", seed, f.n.Load())
			}
		})
	}
}
