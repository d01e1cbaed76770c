package wait_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/nearcall/nearcall/internal/wait"
)

// odd is a context whose methods return its fields.
type odd struct {
	context.Context
	done <-chan struct{}
	err  error
}

func (o odd) Done() <-chan struct{} { return o.done }
func (o odd) Err() error            { return o.err }

var closed = cancelled.Done()

func TestAContextHasEndedWhenDoneIsClosed(t *testing.T) {
	own := errors.New("own")
	for name, c := range map[string]struct {
		ctx             context.Context
		want, afterDone error
	}{
		"background":               {context.Background(), nil, nil},
		"cancelled":                {cancelled, context.Canceled, context.Canceled},
		"an error of its own":      {odd{t.Context(), closed, own}, own, own},
		"an Err, and no Done":      {odd{t.Context(), nil, own}, nil, nil},
		"an Err, and Done is open": {odd{t.Context(), make(chan struct{}), own}, nil, nil},
		"Done, and no Err":         {odd{t.Context(), closed, nil}, nil, context.Canceled},
	} {
		if err := wait.Err(c.ctx); err != c.want {
			t.Errorf("%s: Err is %v, want %v", name, err, c.want)
		}
		if c.afterDone != nil {
			if err := wait.DoneErr(c.ctx); err != c.afterDone {
				t.Errorf("%s: DoneErr is %v, want %v", name, err, c.afterDone)
			}
		}
	}
}

// TestNobodyTakesTheEndOfAContextForAToken: a wait that ends because its context is done
// returns an error, whatever the context's Err returns.
func TestNobodyTakesTheEndOfAContextForAToken(t *testing.T) {
	eachKind(t, func(t *testing.T, w wait.Waiter) {
		p := w.Parker()
		if err := p.Park(odd{context.Background(), closed, nil}); err != context.Canceled {
			t.Errorf("Park returns %v", err)
		}
		own := errors.New("own")
		if err := p.Park(odd{context.Background(), closed, own}); err != own {
			t.Errorf("Park returns %v", err)
		}
		w.Release(p)
	})
	if err := wait.Closed(odd{t.Context(), closed, nil}, nil); err != context.Canceled {
		t.Errorf("Closed returns %v", err)
	}
}

func TestAfterFuncOfAContextThatHasEndedWithoutAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ran := false
		done := make(chan struct{})
		close(done)
		if stop := wait.AfterFunc(odd{t.Context(), done, nil}, func() { ran = true }); stop() {
			t.Error("stop reports that it was in time")
		}
		synctest.Wait()
		if !ran {
			t.Error("the function was not called")
		}
	})
}
