package mux

import "github.com/nearcall/nearcall/internal/encoded"

// A buffer is pooled memory for reads, for writes and for queued messages.
type buffer = encoded.Buffer

func newBuffer(n int) *buffer { return encoded.NewBuffer(n) }
