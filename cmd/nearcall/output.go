package main

import "io"

// A sink is the standard output of a command. It keeps the first error of its writes, and discards
// what comes after it, so the parts of the command that print need no errors of their own.
type sink struct {
	io.Writer
	err error
}

// Write implements [io.Writer].
func (s *sink) Write(b []byte) (int, error) {
	if s.err != nil {
		return 0, s.err
	}
	var n int
	n, s.err = s.Writer.Write(b)
	return n, s.err
}
