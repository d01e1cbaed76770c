package server

import (
	"context"
	"fmt"
	"io"
	"maps"
	"runtime"
	"runtime/pprof"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/testing/callservice"
	"github.com/nearcall/nearcall/internal/testing/labeltest"
)

const labelsVariable = "GRPC_GO_SERVER_GOROUTINE_LABELS"

func TestLabelsFromTheEnvironment(t *testing.T) {
	for value, want := range map[string]bool{
		"":                                   false,
		"all":                                true,
		"ALL":                                true,
		"none":                               false,
		" all":                               false,
		"true":                               false,
		"grpc.method":                        false,
		"grpc.method=true":                   true,
		" GRPC.Method = True , other=true,":  true,
		"grpc.method=1":                      false,
		"grpc.method=true,grpc.method=":      true,
		"grpc.method=true,none":              true,
		"grpc.method=true,grpc.method=false": false,
		"grpc.method=false,grpc.method=true": true,
	} {
		t.Setenv(labelsVariable, value)
		if got := labelsMethods(); got != want {
			t.Errorf("%q: %v, want %v", value, got, want)
		}
	}
}

// placed is a caller's context, a placement, and whether handlers run on the caller's
// goroutine with these if they are not labelled.
var placed = []struct {
	placement   options.Placement
	cancellable bool
	onCaller    bool
}{
	{options.Auto, false, true},
	{options.Auto, true, false},
	{options.Inline, false, true},
	{options.Inline, true, true},
	{options.OnWorkers, false, false},
}

func eachPlacement(t *testing.T, f func(t *testing.T, place func(*options.Server), ctx context.Context, onCaller bool)) {
	for _, p := range placed {
		t.Run(fmt.Sprintf("placement %d, cancellable %v", p.placement, p.cancellable), func(t *testing.T) {
			ctx := context.Background()
			if p.cancellable {
				ctx = t.Context()
			}
			f(t, func(c *options.Server) { c.PlaceHandlers = p.placement }, ctx, p.onCaller)
		})
	}
}

// wantLabels checks the labels of the calling goroutine and of ctx, unless that is nil.
func wantLabels(t *testing.T, when string, ctx context.Context, want map[string]string) {
	t.Helper()
	if ctx != nil {
		got := make(map[string]string)
		pprof.ForLabels(ctx, func(k, v string) bool { got[k] = v; return true })
		if !maps.Equal(got, want) {
			t.Errorf("%s: the context's labels are %v, want %v", when, got, want)
		}
	}
	line := "{}"
	for k, v := range want { // at most one
		line = fmt.Sprintf("{%q:%q}", k, v)
	}
	if got := labeltest.OfCaller(); got != line {
		t.Errorf("%s: the goroutine's labels are %s, want %s", when, got, line)
	}
}

func TestHandlersAreLabelledAndCallersKeepTheirLabels(t *testing.T) {
	t.Setenv(labelsVariable, "grpc.method=true")
	eachPlacement(t, func(t *testing.T, place func(*options.Server), ctx context.Context, _ bool) {
		b := start(t, handlers{
			Unary: func(ctx context.Context, in *msg) (*msg, error) {
				wantLabels(t, "unary handler", ctx, map[string]string{"grpc.method": unaryMethod})
				return in, nil
			},
			Stream: func(s grpc.ServerStream) error {
				wantLabels(t, "stream handler", s.Context(), map[string]string{"grpc.method": streamMethod})
				return nil
			},
		}, place, nil)
		calls := func(ctx context.Context) {
			_, err := b.call(ctx)
			callservice.WantCode(t, err, codes.OK)
			s, err := b.NewStream(ctx, streamDesc, streamMethod)
			callservice.WantCode(t, err, codes.OK)
			if err := s.RecvMsg(new(msg)); err != io.EOF {
				t.Errorf("the stream ended with %v", err)
			}
		}
		calls(ctx)
		wantLabels(t, "the caller afterwards", nil, nil)
		pprof.Do(ctx, pprof.Labels("caller", "1"), func(ctx context.Context) {
			calls(ctx)
			wantLabels(t, "the labelled caller afterwards", nil, map[string]string{"caller": "1"})
		})
	})
}

func TestACallerKeepsLabelsThatItsContextDoesNotKnow(t *testing.T) {
	t.Setenv(labelsVariable, "all")
	b := start(t, handlers{Unary: func(ctx context.Context, in *msg) (*msg, error) {
		wantLabels(t, "handler", ctx, map[string]string{"grpc.method": unaryMethod})
		return in, nil
	}}, nil, nil)
	pprof.Do(context.Background(), pprof.Labels("caller", "1"), func(context.Context) {
		_, err := b.call(context.Background())
		callservice.WantCode(t, err, codes.OK)
		wantLabels(t, "the caller afterwards", nil, map[string]string{"caller": "1"})
	})
}

func TestACallerWhoseHandlerPanicsKeepsItsLabels(t *testing.T) {
	t.Setenv(labelsVariable, "all")
	b := start(t, handlers{Unary: func(context.Context, *msg) (*msg, error) { panic("a handler's") }},
		func(c *options.Server) { c.PlaceHandlers = options.Inline }, nil)
	pprof.Do(context.Background(), pprof.Labels("caller", "1"), func(ctx context.Context) {
		func() {
			defer func() { _ = recover() }()
			_, _ = b.call(ctx)
		}()
		wantLabels(t, "the caller afterwards", nil, map[string]string{"caller": "1"})
	})
}

func TestAnIdleWorkerHasNoLabels(t *testing.T) {
	for _, value := range []string{"", "all"} {
		t.Run(value, func(t *testing.T) {
			t.Setenv(labelsVariable, value)
			for len(labeltest.Of("(*workers).work")) > 0 {
				runtime.Gosched() // a worker of the last test's server is about to exit
			}
			synctest.Test(t, func(t *testing.T) {
				b := start(t, handlers{Unary: func(_ context.Context, in *msg) (*msg, error) { return in, nil }}, onWorkers, nil)
				pprof.Do(t.Context(), pprof.Labels("caller", "1"), func(ctx context.Context) {
					_, err := b.call(ctx)
					callservice.WantCode(t, err, codes.OK)
				})
				synctest.Wait()
				for _, got := range labeltest.Of("(*workers).work") {
					if got != "{}" {
						t.Errorf("an idle worker has the labels %s", got)
					}
				}
			})
		})
	}
}

func TestWithoutTheVariableNothingIsLabelled(t *testing.T) {
	t.Setenv(labelsVariable, "")
	eachPlacement(t, func(t *testing.T, place func(*options.Server), ctx context.Context, onCaller bool) {
		b := start(t, handlers{Unary: func(ctx context.Context, in *msg) (*msg, error) {
			want := "{}"
			if onCaller {
				want = `{"caller":"1"}`
			}
			if got := labeltest.OfCaller(); got != want {
				t.Errorf("a handler's goroutine has the labels %s, want %s", got, want)
			}
			if v, ok := pprof.Label(ctx, "grpc.method"); ok {
				t.Errorf("the context has a label for %q", v)
			}
			return in, nil
		}}, place, nil)
		pprof.Do(ctx, pprof.Labels("caller", "1"), func(ctx context.Context) {
			_, err := b.call(ctx)
			callservice.WantCode(t, err, codes.OK)
		})
	})
}
