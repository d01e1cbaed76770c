package main

import (
	"context"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/loop"
)

// loopRivals are the rivals of services on an event loop.
var loopRivals = []Rival{
	{
		Name: "nearcall-loop", Connect: overLoop(),
		Note: "services registered with srv.OnLoop(loop.New()): handlers are tasks of one loop, of which one runs at a time.",
	},
	{
		Name: "nearcall-coroutines", Connect: overLoop(loop.Coroutines()),
		Note: "the same with loop.New(loop.Coroutines()): the tasks are coroutines.",
	},
	{
		Name: "nearcall", Connect: overNearcall(),
		Note: "on no loop, to compare with: handlers run at the same time.",
	},
	{
		Name: "grpchan", Connect: overGrpchan,
		Note: "on no loop, which it does not have: a goroutine for each handler.",
	},
}

// overLoop connects nearcall with all services on one loop. Close also closes the loop,
// after the server, which does not do so itself.
func overLoop(opts ...loop.Option) func(Services) (Conn, error) {
	return func(s Services) (Conn, error) {
		l, srv := loop.New(opts...), nearcall.NewServer()
		register(srv.OnLoop(l), s)
		conn := srv.Client()
		return stubs(conn, func() {
			_ = conn.Close()
			srv.Stop()
			_ = l.Close(context.Background())
		}), nil
	}
}
