// Package quickstart is the quick start of the project's README: a service in greetpb, and its
// server and client, two programs that connect over a unix socket.
package quickstart
