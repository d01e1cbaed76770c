package loop_test

import (
	"context"
	"fmt"
	"log"
	"runtime"
	"sync"
	"time"

	"github.com/nearcall/nearcall/loop"
)

// Tasks of one loop share plain variables. While one waits, others run.
func Example() {
	l := loop.New()
	visitors := 0
	var both sync.WaitGroup
	both.Add(2)
	visit := func(name string) func(ctx context.Context) {
		return func(ctx context.Context) {
			defer both.Done()
			visitors++ // no lock
			fmt.Println(name, "is visitor", visitors)
			_ = loop.Sleep(ctx, 100*time.Millisecond)
			fmt.Println(name, "saw", visitors)
		}
	}
	err := l.Go(func(context.Context) { // both are ready before either can run
		_ = l.Go(visit("Ada"))
		_ = l.Go(visit("Grace"))
	})
	if err != nil {
		log.Fatal(err)
	}
	both.Wait()
	if err := l.Close(context.Background()); err != nil {
		log.Fatal(err)
	}
	// Unordered output:
	// Ada is visitor 1
	// Grace is visitor 2
	// Ada saw 2
	// Grace saw 2
}

// Await makes a task wait for a callback, and lets other tasks run until it comes.
func ExampleAwait() {
	l := loop.New()
	err := l.Go(func(ctx context.Context) {
		reply, err := loop.Await(ctx, func(resume func(string, error)) {
			go resume("done", nil) // later, on another goroutine
		})
		fmt.Println(reply, err)
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := l.Close(context.Background()); err != nil {
		log.Fatal(err)
	}
	// Output: done <nil>
}

// A pinned loop runs its tasks on the goroutine that calls Run, and on its thread if that
// goroutine is bound to it.
func ExampleLoop_Run() {
	l := loop.New(loop.Pinned())
	go func() { // any goroutine may start tasks
		err := l.Go(func(ctx context.Context) {
			fmt.Println("on the thread of the user interface")
			_ = loop.Sleep(ctx, time.Millisecond)
			fmt.Println("and again")
		})
		if err != nil {
			log.Fatal(err)
		}
		if err := l.Close(context.Background()); err != nil {
			log.Fatal(err)
		}
	}()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := l.Run(context.Background()); err != nil {
		log.Fatal(err)
	}
	// Output:
	// on the thread of the user interface
	// and again
}

// A hosted loop runs its tasks on another event loop. This one is a goroutine that calls
// functions from a channel, as the event loop of an interpreter might.
func ExampleNewHosted() {
	jobs := make(chan func(), 1)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for job := range jobs {
			job()
		}
	}()
	l := loop.NewHosted(func(f func()) error {
		jobs <- f // does not block: at most one is pending
		return nil
	})
	err := l.Go(func(ctx context.Context) {
		answer, err := loop.Await(ctx, func(resume func(int, error)) {
			time.AfterFunc(time.Millisecond, func() { resume(42, nil) })
		})
		fmt.Println(answer, err)
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := l.Close(context.Background()); err != nil { // before its host
		log.Fatal(err)
	}
	close(jobs)
	<-ended
	// Output: 42 <nil>
}

// The goroutine that makes a call runs its handler, so neither has to be woken. Handlers
// must be short: a caller's deadline cannot end its wait while the handler runs.
func ExampleCoroutines() {
	l := loop.New(loop.Coroutines())
	visitors := 0 // of srv.OnLoop(l)'s handlers, for example
	if err := l.Post(func() { visitors++ }); err != nil {
		log.Fatal(err)
	}
	if err := l.Close(context.Background()); err != nil {
		log.Fatal(err)
	}
	fmt.Println(visitors, "visitor")
	// Output: 1 visitor
}

// A watchdog shows which task runs too long without waiting.
func ExampleWatchdog() {
	reported := make(chan struct{})
	l := loop.New(loop.Watchdog(10*time.Millisecond, func(held time.Duration, stack []byte) {
		fmt.Println("for 10 ms and more:", held >= 10*time.Millisecond)
		close(reported)
	}))
	err := l.Go(func(context.Context) { <-reported }) // blocks the loop
	if err != nil {
		log.Fatal(err)
	}
	if err := l.Close(context.Background()); err != nil {
		log.Fatal(err)
	}
	// Output: for 10 ms and more: true
}
