// Package hostile is a transport for tests. It does what a transport may do at
// its worst and is still correct, and so proves that gRPC's rules live above
// the seam of package link: what passes over package inproc must pass here.
//
// # What it does
//
//   - All streams of a session share one pipe. Each side of it has one
//     goroutine that writes and one that reads.
//   - Everything is bytes. A frame is encoded, written, read and decoded by
//     pure functions; nothing else of one side reaches the other. A deadline
//     travels as the time that is left, a status as protobuf.
//   - Messages are cut into fragments of random sizes, frames of several
//     streams are mixed, and the pipe is written in pieces that know nothing
//     of frames.
//   - What arrived may come out of one Recv or of several: a header with its
//     message, an end behind it, or each alone.
//   - A stream has 64 KiB of credit each way. A message is admitted when less
//     is in use, and may itself be larger, as in gRPC.
//   - The bytes of a message that was decoded are overwritten once they are
//     freed.
//   - Options add delays and hang-ups. A hang-up breaks the pipe at any byte;
//     every call then ends with an error that, above, is Unavailable, and calls
//     that the peer cannot have seen say so with [link.ErrUnprocessed].
//
// It has no short cut for unary calls, so they are made as streams, and the
// caller's context does not reach the callee.
//
// # Use
//
//	lis := hostile.Listen("orders", hostile.Options{})
//	go srv.Serve(lis)
//	conn, err := nearcall.NewClient(lis.Target(), hook.Dialer(lis.Dialer()).(nearcall.DialOption))
//
// The zero Options lose nothing and differ from run to run only as goroutines
// do. Their random choices come from Seed.
//
// # The wire
//
// A frame is its length, as a varint, and its body: a byte for the kind, the
// stream's number as a varint, and what the kind has. frame.go lists the
// kinds. Numbers are given to streams in the order in which their opens are
// written, so that a reader knows from a number whether it was used before. A
// peer that breaks a rule loses its session, and the session's error says which
// rule it was.
package hostile
