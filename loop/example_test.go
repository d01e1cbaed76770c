package loop_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/nearcall/nearcall/loop"
)

// Tasks of one loop share plain variables. While one waits, others run.
func Example() {
	l := loop.New()
	visitors := 0
	for _, name := range []string{"Ada", "Grace"} {
		err := l.Go(func(ctx context.Context) {
			visitors++ // no lock
			fmt.Println(name, "is visitor", visitors)
			_ = loop.Sleep(ctx, time.Millisecond)
			fmt.Println(name, "saw", visitors)
		})
		if err != nil {
			log.Fatal(err)
		}
	}
	if err := l.Close(context.Background()); err != nil { // which waits for both
		log.Fatal(err)
	}
	// Output:
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
