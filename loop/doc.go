// Package loop runs tasks one at a time, and lets them wait without holding up one
// another.
//
// State that only tasks of one loop touch needs no lock: at most one of them runs at
// any instant, and what one has written the next one sees. A task that waits hands
// the loop to the next that is ready, first come first served, and queues again when
// what it waited for has come.
//
//	l := loop.New()
//	err := l.Go(func(ctx context.Context) {
//		n := counter                           // a plain variable
//		err := loop.Sleep(ctx, time.Second)    // others run meanwhile
//		counter = n + 1                        // and may have changed it
//	})
//
// # How a task waits
//
// With [Sleep], with [Await] for whatever calls back, and in calls of nearcall's
// clients; all need the task's context, or one made from it. Handlers of services
// that were registered with Server.On of package nearcall are tasks, too, and wait in
// Send and Recv of their streams. What blocks in another way, such as a mutex, a
// channel or a file, holds up the loop, as it does in any event loop.
//
// # Who runs a task
//
// A goroutine of its own, by default. The options [Coroutines] and [Pinned], and
// [NewHosted], have tasks run on the goroutines of callers, on that of [Loop.Run], and
// on that of another event loop.
//
// # What ends a task
//
// runtime.Goexit ends a task, and the loop goes on; a panic ends the process, as any
// goroutine's does. [Loop.Close] waits for tasks, and cancels the
// contexts of those that take too long.
package loop
