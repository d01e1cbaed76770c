// Package actor is a market of one instrument whose state needs no lock. The order book, the
// sessions of its traders and the feed of its trades are plain maps, slices and numbers, and the
// handlers that change them run on one loop.
//
//	l := loop.New()
//	pb.RegisterOrderBookServer(srv.OnLoop(l), actor.NewExchange(l))
//
// Files, from the inside out: book.go matches orders and does not depend on gRPC; signal.go
// lets one task of the loop wait for another; line.go is the bounded queue of messages to
// one client; exchange.go has the handlers.
//
// # A session is three tasks
//
// A trader's fill can be caused by any other trader's order, so the task that waits in Recv for
// the trader's next request cannot also send. A second task sends the messages on the session's
// line. The handler itself does neither: only its return ends a stream, and a task that waits in
// Send for a client that does not read cannot return. So the handler waits until any task ends the
// session. When the handler returns, Recv and Send of the other two tasks fail, and these tasks
// end.
//
// # What is bounded
//
// Each line holds a limited number of messages. A trader's own requests wait while its line
// is more than half full. Messages that other traders' orders cause cannot wait; they may
// fill the other half, and if the line is full the session ends. One step of the book puts
// at most one message on the line of a trader that did not ask for it. The number of open
// orders per trader is limited, too.
package actor
