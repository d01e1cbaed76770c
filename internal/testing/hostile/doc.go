// Package hostile is a transport for tests. It behaves as badly as a correct transport can,
// and so proves that gRPC's rules are implemented above package link: what passes over
// package inproc must pass here.
//
// # What it does
//
//   - All streams of a session share one pipe. Each side has one goroutine that writes to
//     it and one that reads from it.
//   - Everything is bytes. A frame is encoded, written, read and decoded by pure
//     functions; nothing else of one side reaches the other. A deadline is sent as the
//     remaining time, a status as protobuf.
//   - Messages are split into fragments of random sizes, frames of several streams are
//     interleaved, and the pipe is written in pieces that ignore frame boundaries.
//   - One Recv can return several things that arrived, or one: a header with its message, an
//     end after that, or each alone.
//   - A stream has 64 KiB of credit in each direction. A message may be sent while less is
//     in use, and may itself be larger, as in gRPC.
//   - The bytes of a decoded message are overwritten once they are freed.
//   - Options add delays and broken connections. The pipe can break at any byte; every call
//     then ends with an error that becomes Unavailable, and calls that the peer cannot have
//     seen return [link.ErrUnprocessed].
//
// There is no fast path for unary calls: they are streams, and the caller's context does
// not reach the callee.
//
// # Use
//
//	lis := hostile.Listen("orders", hostile.Options{})
//	go srv.Serve(lis)
//	conn, err := nearcall.NewClient(lis.Target(), options.WithDialer(lis.Dialer()))
//
// The zero Options lose nothing, and runs differ only as goroutines are scheduled. Random
// choices derive from Seed.
//
// # The wire
//
// A frame is its length, as a varint, and its body: a byte for the kind, the stream's
// number as a varint, and the fields of the kind. frame.go lists the kinds. Streams are
// numbered in the order in which their open frames are written, so that a reader can tell
// from a number whether the stream was opened. A peer that breaks a rule loses its session,
// whose error says which rule it was.
package hostile
