// Package engine runs JavaScript that serves gRPC services and calls them. The
// interpreter is goja, its event loop that of goja_nodejs, and a loop of package
// loop runs its tasks there: see [Engine.Loop].
//
// # Threads
//
// The interpreter has one thread. What touches it is done in the engine's tasks,
// in functions that the script calls, and nowhere else; so neither the script's
// state nor the engine's has a lock. Its stack is shared by all: a task waits only
// when no JavaScript function is on the stack. So a handler is called, returns a
// promise, and only then its task waits for that; and what a script calls starts
// a task and returns a promise.
//
// # A service
//
// is an object with one function for each method, named as the method with its
// first letter in lower case. The functions may be async. The last argument, call,
// has signal, an AbortSignal that is aborted when the caller is gone; and send and
// recv where the method streams. Both return promises; recv's is null at the end.
//
//	unary(request, call) returns the reply
//	serverStream(request, call)
//	clientStream(call) returns the reply
//	bidi(call)
//
// # A client
//
// is an object with one function for each method, too. The last argument, which may
// be left out, has signal and timeout, in milliseconds.
//
//	await client.unary(request, {timeout: 100})
//	const stream = await client.serverStream(request)
//	const stream = await client.clientStream()
//	const stream = await client.bidi()
//
// A stream has send, closeSend, recv and cancel. As in all of gRPC, it must be read
// until recv returns null or fails, or cancelled. The interpreter has neither async
// generators nor for await, and so this is how to read one:
//
//	for (let m; (m = await stream.recv()) !== null;) { ... }
//
// # Messages and errors
//
// Messages are what protobuf's JSON mapping makes of them: names in lowerCamelCase,
// 64 bit numbers as strings, bytes in base64. All fields are there that have no
// presence. A field that does not exist is an error.
//
// A StatusError has code, message and details. Any object that is thrown and has a
// code that gRPC knows keeps it; what else is thrown is Unknown. The codes are in
// codes, as in codes.NotFound.
package engine
