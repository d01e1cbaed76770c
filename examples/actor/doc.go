// Package actor is a market of one instrument whose state has no lock: an order
// book, the sessions of its traders and the feed of its trades are plain maps,
// slices and numbers, and the handlers that change them run on one loop.
//
//	l := loop.New()
//	pb.RegisterOrderBookServer(srv.On(l), actor.NewExchange(l))
//
// Files from the inside out: book.go matches orders and knows nothing of calls;
// signal.go is how one task of the loop waits for another; line.go is what is on
// its way to one client, bounded; exchange.go has the handlers.
//
// # A session is three tasks
//
// A trader's fill may come from anybody's order, so that one task cannot do with
// waiting for the trader's next request. Another sends what is put on the
// session's line. The handler itself does neither: only its return ends a stream,
// and a task that waits in Send for a client that does not read cannot return. So
// it waits for the session's end, whoever finds it. When it has returned, the Recv
// and Send of the other two fail, and they end.
//
// # What is bounded
//
// Each line holds so many messages and no more. A trader's own requests wait while
// its line is half full; what others do to its orders cannot wait for it, and fills
// the other half, and then the session is ended. One step of the book puts one
// message at most on the line of whoever did not ask for it, and a trader has so
// many orders open and no more.
//
// The program in cmd runs the market, and traders in processes of their own.
package actor
