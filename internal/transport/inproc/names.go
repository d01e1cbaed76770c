// Package inproc carries calls between a client and a server of one process.
// Unary calls meet their callee in one object; streams are pairs of bounded
// queues. Messages are handed over as Go values and never marshalled.
package inproc

import "sync"

// Addr is the address of an in-process peer: its name.
type Addr string

// Network implements [net.Addr].
func (Addr) Network() string { return "inproc" }

// String implements [net.Addr].
func (a Addr) String() string { return string(a) }

// names are the listeners of this process. The table exists once because the
// target inproc:NAME means the same to all of the process.
var names = struct {
	sync.Mutex
	listeners map[string]*Listener
	awaited   map[string][]chan struct{} // closed when the name is taken
}{listeners: make(map[string]*Listener), awaited: make(map[string][]chan struct{})}
