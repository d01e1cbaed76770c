package call

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wait"
)

// Retries by the retryPolicy of a service config, as in grpc-go and gRFC A6.
// This file decides whether a failed attempt is followed by another, and when.
// Client.invoke makes the next attempt of a unary call that goes in one piece,
// and attempt.go that of a stream.

const (
	pushbackKey         = "grpc-retry-pushback-ms"
	previousAttemptsKey = "grpc-previous-rpc-attempts"
)

// A retryPolicy says which calls of a method are retried, and how.
type retryPolicy struct {
	maxAttempts          int // the first included
	initialBackoff       time.Duration
	maxBackoff           time.Duration
	backoffMultiplier    float64
	retryableStatusCodes map[codes.Code]bool
}

// A retryThrottler stops the retries of a connection while too many of its
// calls fail. It is a bucket of tokens: a failure takes one, and a successful
// call puts back ratio of one. A nil *retryThrottler stops nothing.
type retryThrottler struct {
	max, thresh, ratio float64

	mu     sync.Mutex
	tokens float64
}

// throttle takes in a failure, and reports whether to make no retry of it.
func (rt *retryThrottler) throttle() bool {
	if rt == nil {
		return false
	}
	rt.mu.Lock()
	defer rt.mu.Unlock()
	rt.tokens = max(rt.tokens-1, 0)
	return rt.tokens <= rt.thresh
}

// successfulRPC takes in a call that succeeded.
func (rt *retryThrottler) successfulRPC() {
	if rt == nil {
		return
	}
	rt.mu.Lock()
	defer rt.mu.Unlock()
	rt.tokens = min(rt.tokens+rt.ratio, rt.max)
}

// A retryState is what one call knows of its retries. Nil means that the
// service config says nothing of them. One goroutine uses it at a time: the one
// that makes the call's next attempt.
type retryState struct {
	policy    *retryPolicy // nil: no retries, but the throttler is told of the call
	throttler *retryThrottler

	numRetries              int // transparent retries do not count
	numRetriesSincePushback int
}

// newRetryState returns the state of a call's retries; nil where mc says nothing
// of them.
func (mc *methodConfig) newRetryState() *retryState {
	if mc.retryPolicy == nil && mc.retryThrottler == nil {
		return nil
	}
	return &retryState{policy: mc.retryPolicy, throttler: mc.retryThrottler}
}

// hasPolicy reports whether the call may be retried at all.
func (r *retryState) hasPolicy() bool { return r != nil && r.policy != nil }

// retries reports whether err has a code that the policy retries.
func (r *retryState) retries(err error) bool {
	return r.hasPolicy() && r.policy.retryableStatusCodes[status.Code(err)]
}

// shouldRetry decides what follows an attempt that failed with err and had
// trailer. It returns how long to wait before the next attempt, or the error of
// the call if none follows. The attempt got no header: a call that got
// one is committed.
func (r *retryState) shouldRetry(err error, trailer metadata.MD) (time.Duration, error) {
	if r == nil {
		return 0, err
	}
	pushback, hasPushback := 0, false
	switch values := trailer[pushbackKey]; len(values) {
	case 0:
	case 1:
		var e error
		if pushback, e = strconv.Atoi(values[0]); e != nil || pushback < 0 {
			r.throttler.throttle() // the server asks for no retry: that counts as a failure
			return 0, err
		}
		hasPushback = true
	default:
		r.throttler.throttle()
		return 0, err
	}
	if !r.retries(err) {
		return 0, err
	}
	// Only a failure whose code is retryable takes a token.
	if r.throttler.throttle() {
		return 0, err
	}
	rp := r.policy
	if r.numRetries+1 >= rp.maxAttempts {
		return 0, fmt.Errorf("max retries exhausted: failed after %d attempts: %w", r.numRetries+1, err)
	}
	if hasPushback {
		r.numRetriesSincePushback = 0
		return time.Millisecond * time.Duration(pushback), nil
	}
	fact := math.Pow(rp.backoffMultiplier, float64(r.numRetriesSincePushback))
	d := min(float64(rp.initialBackoff)*fact, float64(rp.maxBackoff))
	d *= 0.8 + 0.4*rand.Float64() // jitter
	r.numRetriesSincePushback++
	return time.Duration(int64(d)), nil
}

// addPreviousAttempts returns md with the number of retries that came before.
// md itself stays as it is.
func (r *retryState) addPreviousAttempts(md metadata.MD) metadata.MD {
	if r == nil || r.numRetries == 0 {
		return md
	}
	all := maps.Clone(md)
	if all == nil {
		all = make(metadata.MD, 1)
	}
	all[previousAttemptsKey] = append([]string{strconv.Itoa(r.numRetries)}, md[previousAttemptsKey]...)
	return all
}

// waitForRetry waits for as long as the policy wants after an attempt has failed with
// err and trailer. It returns nil if another attempt follows, and
// otherwise the error of the call.
func (c *Client) waitForRetry(ctx context.Context, r *retryState, err error, trailer metadata.MD) error {
	d, err := r.shouldRetry(err, trailer)
	if err != nil {
		return err
	}
	if err := c.backoff(ctx, d); err != nil {
		return err
	}
	r.numRetries++
	return nil
}

// backoff waits for d. It returns an error as soon as ctx is done or the client
// is closed.
func (c *Client) backoff(ctx context.Context, d time.Duration) error {
	over := make(chan struct{})
	end := sync.OnceFunc(func() { close(over) })
	timer := time.AfterFunc(d, end)
	defer timer.Stop()
	stop := context.AfterFunc(c.closing, end)
	defer stop()
	_ = wait.Closed(ctx, over)
	if err := c.closedFor(); err != nil {
		return err
	}
	if err := wait.Err(ctx); err != nil {
		return status.FromContextError(err).Err()
	}
	return nil
}

// canReplayUnary reports whether a unary call that came back with err may be made
// again: it got no header and no reply, and its request was sent and is small
// enough to be kept.
func canReplayUnary(ci *callInfo, u *link.UnaryCall, req any, err error) bool {
	var unsent *link.SendError
	var tooLarge unsendable
	if err == nil && u.Status == nil || errors.As(err, &unsent) || errors.As(err, &tooLarge) {
		return false
	}
	if u.Header != nil || u.Replied || u.ReplyError != nil {
		return false
	}
	msg := messageOf(req, ci.codec)
	return fitsReplay(&msg, ci.maxReplay)
}

// fitsReplay reports whether m may be kept for another attempt, where limit bytes may.
func fitsReplay(m *link.Message, limit int) bool {
	n, err := m.Size()
	return err == nil && n+link.MessageOverhead <= limit
}
