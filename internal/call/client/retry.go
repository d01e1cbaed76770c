package client

import (
	"context"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/counters"
	"github.com/nearcall/nearcall/internal/durations"
	"github.com/nearcall/nearcall/internal/wait"
)

// Retries by the retryPolicy of a service config, as in grpc-go and gRFC A6. This file decides
// whether and when a failed attempt is retried. attempt.go and replace.go make the next attempt.

const (
	pushbackKey         = "grpc-retry-pushback-ms"
	previousAttemptsKey = "grpc-previous-rpc-attempts"
)

// An attemptKind says why an attempt is made.
type attemptKind uint8

const (
	firstAttempt attemptKind = iota
	transparentRetry
	policyRetry
)

// A retryState is the state of one call's retries. It is nil if the service config does not
// configure retries. Only the goroutine that makes the call's next attempt changes it.
type retryState struct {
	policy    *retryPolicy // nil for no retries; the call then counts for the throttler only
	throttler *retryThrottler

	numRetries              int // transparent retries do not count
	numRetriesSincePushback int
}

// hasPolicy reports whether the call may be retried at all.
func (r *retryState) hasPolicy() bool { return r != nil && r.policy != nil }

// retries reports whether err has a code that is retryable by the policy.
func (r *retryState) retries(err error) bool {
	return r.hasPolicy() && slices.Contains(r.policy.RetryableStatusCodes, status.Code(err))
}

// shouldRetry decides whether to retry an attempt that failed with err and trailer. It
// returns how long to wait before the next attempt, or the error of the call if there is
// none. The attempt must not have received a header, which commits a call.
func (r *retryState) shouldRetry(err error, trailer metadata.MD) (time.Duration, error) {
	if r == nil {
		return 0, err
	}
	pushback, hasPushback := int64(0), false
	switch values := trailer[pushbackKey]; len(values) {
	case 0:
	case 1:
		var e error
		if pushback, e = strconv.ParseInt(values[0], 10, 64); e != nil || pushback < 0 {
			r.throttler.throttle() // the server forbids a retry: this counts as a failure
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
	if r.numRetries+1 >= rp.MaxAttempts {
		return 0, fmt.Errorf("max retries exhausted: failed after %d attempts: %w", r.numRetries+1, err)
	}
	if hasPushback {
		r.numRetriesSincePushback = 0
		return durations.Of(float64(pushback) * float64(time.Millisecond)), nil
	}
	fact := math.Pow(rp.BackoffMultiplier, float64(r.numRetriesSincePushback))
	d := min(float64(rp.InitialBackoff)*fact, float64(rp.MaxBackoff))
	d *= 0.8 + 0.4*rand.Float64() // jitter
	r.numRetriesSincePushback++
	return durations.Of(d), nil
}

// addPreviousAttempts returns md with the number of previous attempts, if there were
// any. It does not modify md.
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

// nextAttempt decides whether another attempt follows the failed one, which returned err and
// trailer. It waits for the policy's backoff if the retry is not transparent. It returns the kind
// of the next attempt, or the error of the call if there is none.
func (r *retryState) nextAttempt(ctx, closing context.Context, transparent bool, err error, trailer metadata.MD) (attemptKind, error) {
	if transparent {
		counters.TransparentRetries.Add(1)
		return transparentRetry, nil
	}
	d, err := r.shouldRetry(err, trailer)
	if err == nil {
		err = backoff(ctx, closing, d)
	}
	if err != nil {
		return 0, err
	}
	r.numRetries++
	counters.PolicyRetries.Add(1)
	return policyRetry, nil
}

// backoff waits for d. It returns an error as soon as ctx or closing is done, the latter with its
// cause.
func backoff(ctx, closing context.Context, d time.Duration) error {
	over := make(chan struct{})
	end := sync.OnceFunc(func() { close(over) })
	timer := time.AfterFunc(d, end)
	defer timer.Stop()
	stop := context.AfterFunc(closing, end)
	defer stop()
	_ = wait.Closed(ctx, over)
	if err := context.Cause(closing); err != nil {
		return err
	}
	if err := wait.Err(ctx); err != nil {
		return status.FromContextError(err).Err()
	}
	return nil
}
