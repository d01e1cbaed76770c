// Package loop runs tasks one at a time, and lets others run while a task waits.
//
// State that only tasks of one loop touch needs no lock: at most one of them runs at
// any time, and each sees what earlier ones have written. A task that waits lets the
// next ready task run, in the order in which they became ready, and queues again when
// its wait ends.
//
//	l := loop.New()
//	err := l.Go(func(ctx context.Context) {
//		n := counter                           // a plain variable
//		err := loop.Sleep(ctx, time.Second)    // other tasks run
//		counter = n + 1                        // and may have changed it
//	})
//
// # How a task waits
//
// A task waits in [Sleep], in [Await] for anything that calls back, and in calls of
// nearcall's clients. All of them need the task's context, or one derived from it.
// Handlers of services that were registered with Server.OnLoop of package nearcall are tasks,
// too, and wait in Send and Recv of their streams. Anything else that blocks, such as
// a mutex, a channel or a file, blocks the loop, as in any event loop.
//
// # Who runs a task
//
// By default each task has its own goroutine. With the option [Coroutines] tasks run on
// the goroutines of callers, with [Pinned] on the goroutine that calls [Loop.Run], and
// with [NewHosted] on another event loop.
//
// # What ends a task
//
// A task ends when its function returns, or by runtime.Goexit; the loop continues. A panic
// ends the process, as on any goroutine. [Loop.Close] waits for tasks, and cancels the
// contexts of those that take too long.
package loop
