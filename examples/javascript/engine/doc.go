// Package engine runs JavaScript that serves and calls gRPC services. The interpreter is goja
// with the event loop of goja_nodejs, which hosts a loop of package loop: see [Engine.Loop].
//
// # Threads
//
// The interpreter has one thread. Only the engine's tasks and functions that the script calls
// access it, so neither the script's state nor the engine's needs a lock. All tasks share the
// interpreter's stack, so a task must wait only while no JavaScript function is on it.
// Therefore a handler returns a promise before its task waits for that promise, and a
// function that a script calls starts a task and returns a promise.
//
// # A service
//
// A service is an object with one function for each method, named like the method but with the
// first letter in lower case. The functions may be async. The last argument, call, has signal, an
// AbortSignal that is aborted when the caller is gone. If the server streams, call also has send,
// and if the client streams, recv. Both return promises; that of recv resolves to null at the end.
//
//	unary(request, call) returns the reply
//	serverStream(request, call)
//	clientStream(call) returns the reply
//	bidi(call)
//
// # A client
//
// A client is an object with one function for each method, too. The last argument, which is
// optional, has signal, and timeout in milliseconds.
//
//	await client.unary(request, {timeout: 100})
//	const stream = await client.serverStream(request)
//	const stream = await client.clientStream()
//	const stream = await client.bidi()
//
// A stream has recv and cancel, and if the client streams, also send and closeSend. As always in
// gRPC, it must be cancelled, or read until recv returns null or fails. The interpreter supports
// neither async generators nor for await, so read a stream like this:
//
//	for (let m; (m = await stream.recv()) !== null;) { ... }
//
// # Messages and errors
//
// Messages follow protobuf's JSON mapping: names in lowerCamelCase, 64 bit numbers as strings,
// bytes in base64. Fields without presence are always set. An unknown field is an
// error.
//
// A StatusError has code, message and details. If a handler throws an object with a code that
// gRPC knows, the call ends with that code, and otherwise with Unknown. The codes are in
// codes, for example codes.NotFound.
package engine
