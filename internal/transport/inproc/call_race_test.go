package inproc

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/testing/transporttest"
	"github.com/nearcall/nearcall/internal/wait"
)

// An attempt is one call to which everything that can happen does, concurrently.
type attempt struct {
	*testing.T
	call           *Call
	who            callee
	request, reply *wrapperspb.StringValue
	cancel         context.CancelFunc
	finished       error // what Finish returned
	aborts         []error
}

func newAttempt(t *testing.T) *attempt {
	a := &attempt{T: t, request: wrapperspb.String("question"), reply: new(wrapperspb.StringValue)}
	var ctx context.Context
	ctx, a.cancel = context.WithCancel(context.Background())
	a.call = newCall(ctx, &a.who, a.request, a.reply)
	return a
}

// handle is the callee. Once an operation was refused, all later ones must be, too.
func (a *attempt) handle() {
	asked := new(wrapperspb.StringValue)
	to := sink(asked)
	errs := []error{a.call.Take(&to)}
	if errs[0] == nil && asked.Value != "question" {
		a.Errorf("the request was %q", asked.Value)
	}
	errs = append(errs, a.call.Send(metadata.MD{"h": {"1"}}, nil, nil))
	a.finished = a.call.Send(nil, reply("answer"), &link.End{Trailer: metadata.MD{"t": {"1"}}})
	errs = append(errs, a.finished)
	for i, err := range errs {
		if err != nil && err != ErrLeft || i > 0 && errs[i-1] != nil && err == nil {
			a.Errorf("the callee got %v", errs)
			return
		}
	}
}

// caller waits, and then writes to its memory, as it may once Wait has returned.
func (a *attempt) caller(w wait.Waiter) error {
	err := a.call.Wait(w)
	_ = a.call.Header["h"]
	if err == nil && (a.reply.Value != "answer" || !a.call.Replied || a.call.Trailer["t"] == nil) {
		a.Errorf("the result is incomplete: %q, %t, %v", a.reply.Value, a.call.Replied, a.call.Trailer)
	}
	a.reply.Value = "mine"
	a.request.Value = "again"
	return err
}

// check checks the outcome after all goroutines have ended.
func (a *attempt) check(err error) {
	if a.reply.Value != "mine" || a.request.Value != "again" {
		a.Error("the callee wrote after Wait")
	}
	left := err == context.Canceled
	if left != (a.who.told.Load() == 1) || a.who.told.Load() > 1 {
		a.Errorf("Wait returned %v, and the callee was told %d times", err, a.who.told.Load())
	}
	if (err == nil) != (a.finished == nil) {
		a.Errorf("Wait returned %v, and Finish %v", err, a.finished)
	}
	known := err == nil || left
	for _, reason := range a.aborts {
		known = known || err == reason
	}
	if !known {
		a.Errorf("Wait returned %v", err)
	}
}

// run runs caller, callee, cancellation and aborts concurrently.
func (a *attempt) run(r *rand.Rand, caller func(f func(w wait.Waiter))) error {
	var all sync.WaitGroup
	all.Go(a.handle)
	if r.IntN(3) > 0 {
		all.Go(a.cancel)
	}
	for range r.IntN(3) {
		reason := errors.New("aborted")
		a.aborts = append(a.aborts, reason)
		all.Go(func() { a.call.Abort(reason) })
	}
	var err error
	caller(func(w wait.Waiter) { err = a.caller(w) })
	all.Wait()
	a.cancel()
	a.check(err)
	return err
}

func TestCallHasExactlyOneOutcome(t *testing.T) {
	const workers, attempts = 4, 2000
	for name, callers := range map[string]func(t *testing.T) func(func(w wait.Waiter)){
		"goroutines": func(t *testing.T) func(func(w wait.Waiter)) {
			pool := &checked{t: t} // used again and again
			return func(f func(w wait.Waiter)) { f(pool) }
		},
		"tasks": func(t *testing.T) func(func(w wait.Waiter)) {
			loop := transporttest.NewTasks()
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				loop.Run()
			}()
			t.Cleanup(func() {
				loop.Close()
				<-ended
			})
			return func(f func(w wait.Waiter)) {
				done := make(chan struct{})
				loop.Go(func() {
					f(loop)
					close(done)
				})
				<-done
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			caller := callers(t)
			var outcomes [3]atomic.Int32
			var all sync.WaitGroup
			for i := range uint64(workers) {
				all.Go(func() {
					r := rand.New(rand.NewPCG(1, i))
					for range attempts {
						switch err := newAttempt(t).run(r, caller); err {
						case nil:
							outcomes[0].Add(1)
						case context.Canceled:
							outcomes[1].Add(1)
						default:
							outcomes[2].Add(1)
						}
					}
				})
			}
			all.Wait()
			t.Logf("%d ended, %d left, %d were aborted", outcomes[0].Load(), outcomes[1].Load(), outcomes[2].Load())
			for i := range outcomes {
				if outcomes[i].Load() == 0 {
					t.Error("an outcome never occurred: the test is too tame")
				}
			}
		})
	}
}
