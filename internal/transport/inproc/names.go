// Package inproc carries calls between a client and a server of one process. In a unary
// call, caller and callee share one object; a stream is a pair of bounded queues. Messages
// are passed as Go values and never marshalled, unless a user's codec requires it.
package inproc

import "sync"

// Addr is the address of an in-process peer: its name.
type Addr string

// Network implements [net.Addr].
func (Addr) Network() string { return "inproc" }

// String implements [net.Addr].
func (a Addr) String() string { return string(a) }

// names are the listeners of this process. There is one table, because the target
// inproc:NAME means the same in the whole process.
var names = struct {
	sync.Mutex
	listeners map[string]*Listener
	awaited   map[string][]chan struct{} // closed when a listener takes the name
}{listeners: make(map[string]*Listener), awaited: make(map[string][]chan struct{})}
