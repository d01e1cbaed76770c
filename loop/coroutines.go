package loop

// Coroutines has tasks be coroutines, which whoever brings a message or a call
// resumes on its own goroutine: neither side is woken for it. It is the fastest kind
// of a loop in process, and not the default, as callers pay for what handlers do:
//
//   - A caller in process runs the handler until that waits or returns, and perhaps a
//     few others. Its deadline or cancellation ends its wait no sooner, and Send
//     returns no sooner. What it holds locked stays locked meanwhile, and a task that
//     wants the same lock never gets it.
//   - A goroutine that is bound to its thread must not be such a caller: the runtime
//     ends the process. That is whoever has called runtime.LockOSThread, init
//     functions, and what C calls. Nor may a task bind itself to the thread beyond a
//     wait.
//   - The thread changes at each wait. A coroutine is kept for later tasks, with the
//     profiler labels of whoever made it. In stack traces a task that waits is a
//     goroutine in the state "coroutine".
//
// Callers of other processes, and what a task waits for beside messages of calls in
// process, do not drive: a goroutine of the loop's does. A panic of a task ends the
// process, and runtime.Goexit its call, as with goroutines.
func Coroutines() Option {
	return func(l *Loop) {
		d := &driven{loop: l, drivenByCallers: true}
		d.call = d.callOwn
		l.engine = d
	}
}
