// Package orders holds one program twice: in before as grpc-go runs it, in
// after as nearcall does. The gofmt lines of docs/migrate.md lead from one to
// the other, and a test here runs them. Another has the same client make the
// same calls to both, and compares what it sees.
package orders
