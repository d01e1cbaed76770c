// Package orders contains one program twice: for grpc-go in the directory before, and for
// nearcall in the directory after. The directory shop has what need not change. The gofmt lines of
// docs/migrate.md turn the first into the second; a test here checks that. Another test makes the
// same calls to both, and to each server with the other's clients, and compares the results: servers
// can move over first, and clients later.
package orders
