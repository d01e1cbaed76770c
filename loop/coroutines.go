package loop

// Coroutines makes tasks coroutines. A caller in process that starts a call or sends a message
// resumes the task on its own goroutine, so no goroutine has to be woken. For calls in process
// this is the fastest kind of loop. It is not the default because callers pay for what handlers
// do:
//
//   - A caller in process runs the handler until it waits or returns, and perhaps a few
//     other tasks. Until then the caller's wait is not ended by its deadline or cancellation, and its
//     Send does not return. The caller keeps its locks, so a task that needs one of them deadlocks.
//   - A goroutine that is bound to its thread must not be such a caller, or the runtime
//     ends the process. Goroutines that called runtime.LockOSThread, init functions, and functions
//     that C calls are bound. A task must not stay bound to the thread across a wait either.
//   - A task may be on another thread after each wait. Coroutines are reused, and keep
//     the profiler labels of the goroutine that made them. In stack traces a waiting task
//     is a goroutine in the state "coroutine".
//
// For calls from other processes, and for anything else that a task waits for, a goroutine
// of the loop resumes the task. A panic in a task ends the process, and runtime.Goexit
// ends its call, as with goroutines.
func Coroutines() Option {
	return func(l *Loop) {
		d := &driven{loop: l, drivenByCallers: true}
		d.wakeDriver = d.startOwnDriver
		l.engine = d
	}
}
