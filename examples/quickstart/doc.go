// Package quickstart is the quick start of the project's README: a service in
// greetpb, its server and a client, two programs that meet at a unix socket.
package quickstart
