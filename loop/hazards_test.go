package loop

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/nearcall/nearcall/internal/wait"
)

// These tests check what thread binding, Goexit and panics do with each kind of loop;
// docs/adr/0012 has the table. Each case runs in a child process, because it might
// end it.

const hazard = "NEARCALL_LOOP_HAZARD" // the environment variable: NAME/KIND

// hazards are functions that a child process runs with a loop. The case ends well if the
// function returns.
var hazards = map[string]func(l *Loop){
	"a caller that is bound to its thread, after one that is not": func(l *Loop) {
		call(l, func() {})
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		call(l, func() {})
	},
	"a caller that is not bound to its thread, after one that is": func(l *Loop) {
		made := make(chan struct{})
		go func() {
			runtime.LockOSThread()
			call(l, func() {})
			close(made)
		}()
		<-made
		call(l, func() {})
	},
	"a task that binds itself to the thread and waits": func(l *Loop) {
		call(l, func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			nap(l)
		})
	},
	"a task that binds itself to the thread and does not wait": func(l *Loop) {
		call(l, func() {
			runtime.LockOSThread()
			runtime.UnlockOSThread()
		})
	},
	"Goexit": func(l *Loop) {
		over := make(chan struct{})
		_ = (*handlers)(l).Start(true, job{run: func() {
			defer close(over)
			defer nap(l)
			runtime.Goexit()
		}})
		<-over
		call(l, func() {})
	},
	"a panic": func(l *Loop) {
		defer func() {
			if recover() != nil {
				fmt.Println("the caller recovers")
			}
		}()
		call(l, func() { panic("out of a task") })
	},
}

// A job is a [wait.Job] made of functions.
type job struct {
	run  func()
	lost func(error)
}

func (j job) Run()                { j.run() }
func (j job) Drop()               {}
func (j job) Leave()              {}
func (j job) Cancelled(why error) { j.lost(why) }

// call runs fn as a task of l and waits for it, as a caller in process does.
func call(l *Loop, fn func()) {
	done := make(chan struct{})
	if err := (*handlers)(l).Start(true, job{run: func() { fn(); close(done) }}); err != nil {
		panic(err)
	}
	<-done
}

// nap makes a task wait.
func nap(l *Loop) {
	_ = Sleep(wait.WithLoop(context.Background(), (*handlers)(l)), 20*time.Millisecond)
}

// The hazard "init" calls from an init function, which runs bound to its thread.
func init() {
	name, kind, ok := strings.Cut(os.Getenv(hazard), "/")
	if ok && name == "init" {
		l := kindOf(kind).make()
		call(l, func() { nap(l) })
		fmt.Println("it ends well")
		os.Exit(0)
	}
}

func kindOf(name string) kind {
	for _, k := range kinds {
		if k.name == name {
			return k
		}
	}
	panic("there is no kind " + name)
}

func TestHazardInAChild(t *testing.T) {
	name, kind, ok := strings.Cut(os.Getenv(hazard), "/")
	if !ok {
		t.Skip("only in a child process")
	}
	hazards[name](kindOf(kind).make())
	fmt.Println("it ends well")
	os.Exit(0) // whatever is left
}

func TestHazards(t *testing.T) {
	if testing.Short() {
		t.Skip("starts many processes")
	}
	const (
		well   = "it ends well"
		bound  = "coro: OS thread locking must match" // thrown by the runtime, so it cannot be recovered
		panics = "panic: out of a task"
	)
	for name, ends := range map[string]map[string]string{
		"a caller that is bound to its thread, after one that is not": {"coroutines": bound},
		"a caller that is not bound to its thread, after one that is": {"coroutines": bound},
		"init": {"coroutines": bound},
		"a task that binds itself to the thread and waits": {
			"coroutines": bound, "pinned": bound, "pinned to a thread": bound, "hosted": bound, "hosted by a thread": bound,
		},
		"a task that binds itself to the thread and does not wait": {},
		"Goexit": {},
		"a panic": {
			"baton": panics, "coroutines": panics, "pinned": panics, "pinned to a thread": panics, "hosted": panics, "hosted by a thread": panics,
		},
	} {
		for _, k := range kinds {
			t.Run(name+"/"+k.name, func(t *testing.T) {
				t.Parallel()
				want, ok := ends[k.name]
				if !ok {
					want = well
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestHazardInAChild$")
				cmd.Env = append(os.Environ(), hazard+"="+name+"/"+k.name)
				out, err := cmd.CombinedOutput()
				if !strings.Contains(string(out), want) || (err == nil) != (want == well) {
					t.Errorf("want %q: %v\n%s", want, err, out)
				}
			})
		}
	}
}

// TestAPanicShowsItsTask checks that a panic ends the process with the stack trace of the
// task, not of the goroutine that resumed it.
func TestAPanicShowsItsTask(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			cmd := exec.Command(os.Args[0], "-test.run=^TestHazardInAChild$")
			cmd.Env = append(os.Environ(), hazard+"=a panic/"+k.name)
			out, _ := cmd.CombinedOutput()
			if !strings.Contains(string(out), "hazards_test.go") || strings.Contains(string(out), "the caller recovers") {
				t.Errorf("%s", out)
			}
		})
	}
}
