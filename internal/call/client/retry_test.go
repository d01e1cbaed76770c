package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/nearcall/nearcall/internal/call"
	"github.com/nearcall/nearcall/internal/counters"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/testing/callservice"
)

// policy returns the retryState of a new call, with backoffs that start at 1 s and double
// up to 10 s.
func policy(maxAttempts int) *retryState {
	return &retryState{policy: &retryPolicy{
		MaxAttempts:          maxAttempts,
		InitialBackoff:       jsonDuration(time.Second),
		MaxBackoff:           jsonDuration(10 * time.Second),
		BackoffMultiplier:    2,
		RetryableStatusCodes: []codes.Code{codes.Unavailable},
	}}
}

var errAgain = status.Error(codes.Unavailable, "again")

func TestBackoffGrowsAndIsJittered(t *testing.T) {
	const samples = 200
	for n, want := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 10 * time.Second, 10 * time.Second} {
		least, most := time.Duration(math.MaxInt64), time.Duration(0)
		for range samples {
			r := policy(100)
			r.numRetries, r.numRetriesSincePushback = 20, n
			d, err := r.shouldRetry(errAgain, nil)
			if err != nil {
				t.Fatal(err)
			}
			least, most = min(least, d), max(most, d)
		}
		if lo, hi := want*8/10, want*12/10; least < lo || most > hi || least > want*9/10 || most < want*11/10 {
			t.Errorf("backoff %d is %v to %v, want %v to %v", n, least, most, lo, hi)
		}
	}
}

func TestAPushbackResetsTheBackoff(t *testing.T) {
	r := policy(100)
	for range 4 {
		if _, err := r.shouldRetry(errAgain, nil); err != nil {
			t.Fatal(err)
		}
	}
	d, err := r.shouldRetry(errAgain, metadata.Pairs(pushbackKey, "1500"))
	if err != nil || d != 1500*time.Millisecond {
		t.Errorf("%v, %v: want what the server says, to the millisecond", d, err)
	}
	if d, err = r.shouldRetry(errAgain, nil); err != nil || d > 1200*time.Millisecond {
		t.Errorf("%v, %v after it, want the initial backoff", d, err)
	}
}

func TestThrottler(t *testing.T) {
	rt := &retryThrottler{max: 4, thresh: 2, ratio: 0.5, tokens: 4}
	for i, step := range []struct {
		success, throttled bool
		tokens             float64
	}{
		{success: true, tokens: 4}, // the maximum
		{tokens: 3},
		{throttled: true, tokens: 2},
		{success: true, tokens: 2.5},
		{throttled: true, tokens: 1.5},
		{throttled: true, tokens: 0.5},
		{throttled: true, tokens: 0}, // the minimum
		{success: true, tokens: 0.5},
	} {
		throttled := false
		if step.success {
			rt.successfulRPC()
		} else {
			throttled = rt.throttle()
		}
		if throttled != step.throttled || rt.tokens != step.tokens {
			t.Errorf("step %d: %v with %v tokens, want %v with %v", i, throttled, rt.tokens, step.throttled, step.tokens)
		}
	}
	var none *retryThrottler
	none.successfulRPC()
	if none.throttle() {
		t.Error("without a throttler retries stop")
	}
}

// retryConfig is a service config for all methods with the numbers of policy.
func retryConfig(t testing.TB, maxAttempts int) *ServiceConfig {
	t.Helper()
	sc, err := ParseServiceConfig(fmt.Sprintf(`{"methodConfig":[{"name":[{}],"retryPolicy":{
		"maxAttempts":%d,"initialBackoff":"1s","maxBackoff":"10s","backoffMultiplier":2,"retryableStatusCodes":["UNAVAILABLE"]}}]}`, maxAttempts), math.MaxInt)
	if err != nil {
		t.Fatal(err)
	}
	return sc
}

// ways are the three ways to make a call: with a shortcut for unary calls, as a stream in
// process, and as a stream to another process.
var ways = map[string]func(link.Session) link.Session{
	"in one piece":      func(s link.Session) link.Session { return s },
	"in process":        func(s link.Session) link.Session { return callservice.Streamed{Session: s} },
	"over a connection": func(s link.Session) link.Session { return callservice.Distant{Session: s} },
}

// startRetried returns a bed whose client retries.
func startRetried(t testing.TB, h handlers, maxAttempts int, way func(link.Session) link.Session) *bed {
	t.Helper()
	b := start(t, h, nil, nil)
	cfg := b.cfg
	cfg.Service = retryConfig(t, maxAttempts)
	cfg.Sessions = callservice.Always{Session: way(b.session)}
	b.Client = New(b.opts, cfg)
	return b
}

func TestRetriesWaitForTheBackoff(t *testing.T) {
	for name, way := range ways {
		for kind, call := range map[string]func(*Client, ...grpc.CallOption) error{"unary": invokes, "stream": streams} {
			t.Run(name+", "+kind, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var begun []time.Time
					fail := func() error {
						begun = append(begun, time.Now())
						return errAgain
					}
					b := startRetried(t, handlers{
						Unary:  func(context.Context, *msg) (*msg, error) { return nil, fail() },
						Stream: func(grpc.ServerStream) error { return fail() },
					}, 4, way)
					var f finish
					err := call(b.Client, f.option())
					callservice.WantCode(t, err, codes.Unavailable)
					f.want(t, codes.Unavailable)
					if want := "max retries exhausted: failed after 4 attempts: " + errAgain.Error(); err == nil || err.Error() != want {
						t.Errorf("%v, want %s", err, want)
					}
					if len(begun) != 4 {
						t.Fatalf("%d attempts", len(begun))
					}
					for i, want := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second} {
						if d := begun[i+1].Sub(begun[i]); d < want*8/10 || d > want*12/10 {
							t.Errorf("attempt %d came after %v, want %v or a fifth more or less", i+2, d, want)
						}
					}
				})
			})
		}
	}
}

// Details that a handler has put into the trailer reach the caller, also if the policy decides
// about the failure.
func TestAFailureThatIsNotRetriedHasItsDetails(t *testing.T) {
	detailed, err := status.New(codes.NotFound, "no").WithDetails(wrapperspb.String("detail"))
	if err != nil {
		t.Fatal(err)
	}
	b, err := proto.Marshal(detailed.Proto())
	if err != nil {
		t.Fatal(err)
	}
	fail := func(ctx context.Context) error {
		_ = grpc.SetTrailer(ctx, metadata.Pairs(link.DetailsKey, string(b)))
		return status.Error(codes.NotFound, "no")
	}
	for name, way := range ways {
		for kind, call := range map[string]func(*Client, ...grpc.CallOption) error{"unary": invokes, "stream": streams} {
			t.Run(name+", "+kind, func(t *testing.T) {
				b := startRetried(t, handlers{
					Unary:  func(ctx context.Context, _ *msg) (*msg, error) { return nil, fail(ctx) },
					Stream: func(ss grpc.ServerStream) error { return fail(ss.Context()) },
				}, 4, way)
				if st := status.Convert(call(b.Client)); st.Code() != codes.NotFound || len(st.Details()) != 1 {
					t.Errorf("the call ends with %v, %d details", st, len(st.Details()))
				}
			})
		}
	}
}

// A call that ends during its backoff returns at once.
func TestLeavingInTheBackoff(t *testing.T) {
	for leaving, leave := range map[string]struct {
		do   func(*Client, context.CancelFunc)
		want error
	}{
		"cancelled": {func(_ *Client, cancel context.CancelFunc) { cancel() }, call.ContextStatus(context.Canceled)},
		"closed":    {func(c *Client, _ context.CancelFunc) { c.Close(errClosed) }, errClosed},
		"deadline":  {func(*Client, context.CancelFunc) { time.Sleep(time.Hour) }, call.ContextStatus(context.DeadlineExceeded)},
	} {
		for name, way := range ways {
			for _, unary := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s, %s, unary %v", leaving, name, unary), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						var ran atomic.Int32
						b := startRetried(t, handlers{
							Unary:  func(context.Context, *msg) (*msg, error) { ran.Add(1); return nil, errAgain },
							Stream: func(grpc.ServerStream) error { ran.Add(1); return errAgain },
						}, 4, way)
						ctx, cancel := context.WithTimeout(t.Context(), 700*time.Millisecond)
						defer cancel()
						var f finish
						got := make(chan error)
						go func() {
							if unary {
								got <- b.Invoke(ctx, unaryMethod, new(msg), new(msg), f.option())
								return
							}
							cs, err := b.NewStream(ctx, streamDesc, streamMethod, f.option())
							if err == nil {
								err = cs.RecvMsg(new(msg))
							}
							got <- err
						}()
						synctest.Wait() // it waits
						if n := ran.Load(); n != 1 || f.n.Load() != 0 {
							t.Errorf("%d attempts, %d ends", n, f.n.Load())
						}
						begun := time.Now()
						go leave.do(b.Client, cancel)
						err := <-got
						if d := time.Since(begun); d > 0 && leaving != "deadline" {
							t.Errorf("it left after %v", d)
						}
						if err == nil || err.Error() != leave.want.Error() {
							t.Errorf("%v, want %v", err, leave.want)
						}
						synctest.Wait()
						f.want(t, status.Code(leave.want))
						if ran.Load() != 1 || len(b.streams) != 0 {
							t.Errorf("%d attempts, open streams: %v", ran.Load(), len(b.streams) != 0)
						}
						time.Sleep(2 * time.Hour)
					})
				})
			}
		}
	}
}

var errClosed = status.Error(codes.Canceled, "closing")

// A lost connection is retried like other failures, unless a header was received.
func TestALostConnectionIsRetried(t *testing.T) {
	lost := errors.New("lost")
	for name, c := range map[string]struct {
		session  *doomed
		want     codes.Code
		attempts int32
	}{
		"while it is awaited":         {&doomed{recv: true, sends: 9, reason: lost}, codes.OK, 2},
		"in a send":                   {&doomed{sends: 0, reason: lost}, codes.OK, 2},
		"after a send":                {&doomed{sends: 1, late: true, reason: lost}, codes.OK, 2},
		"before anybody looks":        {&doomed{early: true, reason: lost}, codes.OK, 2},
		"with a header":               {&doomed{recv: true, sends: 9, header: true, reason: lost}, codes.Unavailable, 1},
		"with a header, after a send": {&doomed{sends: 1, late: true, header: true, reason: lost}, codes.Unavailable, 1},
		"for another reason":          {&doomed{recv: true, sends: 9, reason: status.Error(codes.Internal, "broken")}, codes.Internal, 1},
	} {
		for kind, call := range map[string]func(*Client, ...grpc.CallOption) error{"unary": invokes, "stream": streams} {
			t.Run(name+", "+kind, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					session := *c.session
					client, in := retrying(t, handlers{}, false, func(cc *clientSetup) { cc.Service = retryConfig(t, 3) }, &session)
					var f finish
					begun := time.Now()
					callservice.WantCode(t, call(client, f.option()), c.want)
					f.want(t, c.want)
					if n := in.asked.Load(); n != c.attempts || len(client.streams) != 0 {
						t.Errorf("%d attempts, want %d", n, c.attempts)
					}
					if d := time.Since(begun); (d > 0) != (c.want == codes.OK) {
						t.Errorf("it took %v", d)
					}
				})
			})
		}
	}
}

// A failed stream is made again, or retried by a policy, by the next operation on it. Until then it ends if
// its context ends, its client is closed, or an operation commits it.
func TestAnAbandonedStreamThatCouldBeMadeAgainIsFreed(t *testing.T) {
	for name, c := range map[string]struct {
		free func(*Client, grpc.ClientStream, context.CancelFunc)
		want codes.Code
	}{
		"by its context":        {func(_ *Client, _ grpc.ClientStream, cancel context.CancelFunc) { cancel() }, codes.Canceled},
		"by its client":         {func(c *Client, _ grpc.ClientStream, _ context.CancelFunc) { c.Close(errClosed) }, codes.Canceled},
		"by asking for context": {func(_ *Client, cs grpc.ClientStream, _ context.CancelFunc) { cs.Context() }, codes.Unavailable},
		"by asking for trailer": {func(_ *Client, cs grpc.ClientStream, _ context.CancelFunc) { cs.Trailer() }, codes.Unavailable},
	} {
		for why, reason := range map[string]error{"unseen": errUnseen, "lost": errors.New("lost")} {
			t.Run(name+", "+why, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					session := &doomed{sends: 9, reason: reason}
					client, in := retrying(t, handlers{}, false, func(cc *clientSetup) {
						if reason != errUnseen {
							cc.Service = retryConfig(t, 3)
						}
					}, session)
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					var f finish
					cs, err := client.NewStream(ctx, streamDesc, streamMethod, f.option())
					if err != nil {
						t.Fatal(err)
					}
					session.opened[0].Abort(session.reason)
					synctest.Wait()
					if n := f.n.Load(); n != 0 {
						t.Errorf("ended %d times, and could be made again", n)
					}
					c.free(client, cs, cancel)
					synctest.Wait()
					f.want(t, c.want)
					callservice.WantCode(t, cs.RecvMsg(new(msg)), c.want)
					if in.asked.Load() != 1 || len(client.streams) != 0 {
						t.Errorf("%d attempts, open streams: %v", in.asked.Load(), len(client.streams) != 0)
					}
				})
			})
		}
	}
}

// The policy applies to failures to connect, too.
func TestSessionsThatAreMissingAreRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for kind, call := range map[string]func(*Client, ...grpc.CallOption) error{"unary": invokes, "stream": streams} {
			client, in := retrying(t, handlers{}, true, func(cc *clientSetup) { cc.Service = retryConfig(t, 3) })
			var f finish
			err := call(client, f.option())
			callservice.WantCode(t, err, codes.Unavailable)
			f.want(t, codes.Unavailable)
			if in.asked.Load() != 3 || err.Error() != "max retries exhausted: failed after 3 attempts: rpc error: code = Unavailable desc = no further session" {
				t.Errorf("%s: %d attempts: %v", kind, in.asked.Load(), err)
			}
		}
	})
}

// Transparent retries do not count as attempts of the policy. Package counters counts both.
func TestTransparentRetriesAreNotCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var previous [][]string
		note := func(ctx context.Context) error {
			md, _ := metadata.FromIncomingContext(ctx)
			previous = append(previous, md[previousAttemptsKey])
			if len(previous) < 3 {
				return errAgain
			}
			return nil
		}
		for kind, call := range map[string]func(*Client, ...grpc.CallOption) error{"unary": invokes, "stream": streams} {
			previous = nil
			transparent, policy := counters.TransparentRetries.Load(), counters.PolicyRetries.Load()
			b := start(t, handlers{
				Unary:  func(ctx context.Context, m *msg) (*msg, error) { return m, note(ctx) },
				Stream: func(ss grpc.ServerStream) error { return note(ss.Context()) },
			}, nil, nil)
			cfg := b.cfg
			cfg.Service = retryConfig(t, 3)
			cfg.Sessions = &inTurn{sessions: []link.Session{&doomed{refuse: true}, callservice.Distant{Session: b.session}, &doomed{refuse: true}, callservice.Distant{Session: b.session}, &doomed{refuse: true}, callservice.Distant{Session: b.session}}}
			callservice.WantCode(t, call(New(b.opts, cfg)), codes.OK)
			if got := fmt.Sprint(previous); got != "[[] [1] [2]]" {
				t.Errorf("%s: attempts %s", kind, got)
			}
			if transparent, policy = counters.TransparentRetries.Load()-transparent, counters.PolicyRetries.Load()-policy; transparent != 3 || policy != 2 {
				t.Errorf("%s: %d transparent retries and %d by policy are counted", kind, transparent, policy)
			}
		}
	})
}

// If an attempt's handler receives less than that of an earlier attempt, the replay blocks
// until the handler returns.
func TestAReplayThatGetsNoCreditEndsWithItsAttempt(t *testing.T) {
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var attempts atomic.Int32
				b := startRetried(t, handlers{Stream: func(ss grpc.ServerStream) error {
					n := attempts.Add(1)
					if n == 2 {
						time.Sleep(time.Minute) // the window is full by then
						return errAgain
					}
					for range 5 {
						if err := ss.RecvMsg(new(msg)); err != nil {
							return err
						}
					}
					if n == 1 {
						return errAgain
					}
					return nil
				}}, 3, way)
				cs, err := b.NewStream(t.Context(), streamDesc, streamMethod)
				if err != nil {
					t.Fatal(err)
				}
				for range 5 {
					if err := cs.SendMsg(wrapperspb.Bytes(make([]byte, 40<<10))); err != nil {
						t.Fatal(err)
					}
				}
				if err := cs.RecvMsg(new(msg)); err != io.EOF {
					t.Error(err)
				}
				if n := attempts.Load(); n != 3 {
					t.Errorf("%d attempts", n)
				}
			})
		})
	}
}

// A sender, a receiver, handlers that fail and a user that cancels run concurrently. A call
// that is not cancelled transfers all its messages, in order and once.
func TestPolicyRetryRaces(t *testing.T) {
	const messages = 20
	for name, way := range ways {
		for seed := range 100 {
			synctest.Test(t, func(t *testing.T) {
				var attempts atomic.Int32
				b := startRetried(t, handlers{Stream: func(ss grpc.ServerStream) error {
					n := int(attempts.Add(1))
					for i := 0; ; i++ {
						m := new(msg)
						if err := ss.RecvMsg(m); err == io.EOF {
							if i != messages {
								return status.Errorf(codes.DataLoss, "%d messages", i)
							}
							return ss.SendMsg(m)
						} else if err != nil {
							return err
						}
						if len(m.Value) != 1 || m.Value[0] != byte(i) {
							return status.Errorf(codes.DataLoss, "message %d is %v", i, m.Value)
						}
						if n <= 3 && i == (seed*n)%messages {
							return errAgain
						}
					}
				}}, 4, way)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				var f finish
				cs, err := b.NewStream(ctx, streamDesc, streamMethod, f.option())
				if err != nil {
					t.Fatal(err)
				}
				leaves := seed%3 == 0
				var all sync.WaitGroup
				all.Go(func() {
					m := new(msg)
					for i := range messages {
						m.Value = append(m.Value[:0], byte(i))
						if err := cs.SendMsg(m); err != nil {
							if err != io.EOF || !leaves {
								t.Errorf("%s, seed %d: SendMsg: %v", name, seed, err)
							}
							break
						}
						time.Sleep(time.Duration(seed%2) * time.Millisecond)
					}
					_ = cs.CloseSend()
				})
				all.Go(func() {
					if leaves {
						time.Sleep(time.Duration(seed*50) * time.Millisecond)
						if seed%2 == 0 {
							cancel()
						} else {
							b.Close(errClosed)
						}
					}
				})
				if seed%5 == 0 {
					all.Go(func() { _, _ = cs.Header() })
				}
				err = cs.RecvMsg(new(msg))
				if err == nil {
					err = cs.RecvMsg(new(msg))
				}
				// As in grpc-go, the attempt's failure may come before the user's cancel.
				if err != io.EOF && (!leaves || status.Code(err) != codes.Canceled && err.Error() != errAgain.Error()) {
					t.Errorf("%s, seed %d: %v", name, seed, err)
				}
				all.Wait()
				synctest.Wait()
				if f.n.Load() != 1 || len(b.streams) != 0 {
					t.Errorf("%s, seed %d: ended %d times", name, seed, f.n.Load())
				}
			})
		}
	}
}

// A policy's longest backoff, and any pause that a server asks for, pass in the future.
func TestAnyBackoffAndPushback(t *testing.T) {
	for range 200 {
		r := policy(100)
		r.policy.InitialBackoff, r.policy.MaxBackoff = math.MaxInt64, math.MaxInt64
		r.policy.BackoffMultiplier = math.MaxFloat64
		for range 3 {
			if d, err := r.shouldRetry(errAgain, nil); err != nil || d < math.MaxInt64/2 {
				t.Fatalf("%v, %v", d, err)
			}
		}
	}
	for text, want := range map[string]time.Duration{
		"0": 0, "1": time.Millisecond, "2147483648": 1 << 31 * time.Millisecond,
		"9223372036855": math.MaxInt64, "9223372036854775807": math.MaxInt64,
	} {
		if d, err := policy(100).shouldRetry(errAgain, metadata.Pairs(pushbackKey, text)); err != nil || d != want {
			t.Errorf("%s ms: %v, %v, want %v", text, d, err, want)
		}
	}
	for _, text := range []string{"-1", "-9223372036854775808", "9223372036854775808", ""} {
		if d, err := policy(100).shouldRetry(errAgain, metadata.Pairs(pushbackKey, text)); err == nil {
			t.Errorf("%q ms: a retry after %v", text, d)
		}
	}
}
