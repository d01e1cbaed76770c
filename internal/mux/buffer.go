package mux

import "github.com/nearcall/nearcall/internal/encoded"

// A buffer is pooled memory for reading, for writing, and for messages in between.
type buffer = encoded.Buffer

func newBuffer(n int) *buffer { return encoded.NewBuffer(n) }
