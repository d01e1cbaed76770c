//go:build !unix

package mux

// newSocket returns nil: Windows has no nonblocking reads and writes for the sockets that Go opens. So
// callers do not read: as over TLS, the read loop reads everything and the writer writes everything.
func newSocket(Conn) Prompt { return nil }

// yield does nothing: only Linux's sched_yield is known to let other processes run.
func yield() {}

func giveWay() {}
