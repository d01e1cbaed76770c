package engine_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/examples/javascript/engine"
)

func TestAScriptThatIsWrongSaysWhere(t *testing.T) {
	e := newEngine(t)
	for source, want := range map[string]string{
		"let a = ;":                    "shop.js: Line 1:9 Unexpected token ;",
		"\n\nnothing();":               "ReferenceError: nothing is not defined\n\tat shop.js:3:8",
		"undeclared = 1":               "ReferenceError: undeclared is not defined",
		"throw 'oops'":                 "oops",
		"(async () => {\nnull.x\n})()": "shop.js:2:6",
		"Promise.reject(new StatusError(5, 'no'))": "StatusError: no",
		"require('./secrets.js')":                  "Invalid module",
		"new Promise(() => {}), orders.place({})":  "orders is not defined",
	} {
		_, err := e.Run(withPatience(t), "shop.js", source)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\nfails with: %v", source, err)
		}
	}
	_, err := e.Run(withPatience(t), "shop.js", "throw new StatusError(codes.NotFound, 'no')")
	var thrown *engine.ScriptError
	if !errors.As(err, &thrown) || status.Code(err) != codes.NotFound {
		t.Errorf("%v", err)
	}
	if got := run(t, e, "1 + 1"); got != "2" {
		t.Errorf("after all that, 1 + 1 is %s", got)
	}
}

func TestRunReturnsWhenItsContextIsDone(t *testing.T) {
	e := newEngine(t)
	ctx, cancel := context.WithCancel(withPatience(t))
	ended := make(chan error, 1)
	go func() {
		_, err := e.Run(ctx, "forever", "var begun = true; new Promise(() => {})")
		ended <- err
	}()
	for run(t, e, "typeof begun") != `"boolean"` {
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := e.Close(withPatience(t)); err != nil {
		t.Errorf("the script's task is left: %v", err)
	}
}

func TestErrorsThatNobodySeesAreReported(t *testing.T) {
	reported := make(chan error, 10)
	e := engine.New(func(err error) { reported <- err })
	defer e.Stop()
	run(t, e, `
		Promise.reject(new Error('a promise'));
		const seen = Promise.reject(new Error('is seen later'));
		seen.catch(() => {});
		setTimeout(() => { throw new Error('a timer') }, 0);
		new Promise(resolve => setTimeout(resolve, 5));
	`)
	var got []string
	for range 2 {
		select {
		case err := <-reported:
			first, _, _ := strings.Cut(err.Error(), "\n")
			got = append(got, first)
		case <-withPatience(t).Done():
			t.Fatalf("only %q are reported", got)
		}
	}
	slices.Sort(got)
	if want := []string{"Error: a promise", "Error: a timer"}; !slices.Equal(got, want) || len(reported) > 0 {
		t.Errorf("%q are reported, and %d more", got, len(reported))
	}
}
