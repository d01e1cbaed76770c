package loop_test

import (
	"context"
	"fmt"
	"log"
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
			_ = loop.Sleep(ctx, time.Millisecond)
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

// Await makes a task wait for whatever calls back, and gives the loop to others
// meanwhile.
func ExampleAwait() {
	l := loop.New()
	err := l.Go(func(ctx context.Context) {
		reply, err := loop.Await(ctx, func(resume func(string, error)) {
			go resume("done", nil) // on another goroutine, some time
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
