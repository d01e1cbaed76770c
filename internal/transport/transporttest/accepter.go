package transporttest

import "github.com/nearcall/nearcall/internal/link"

// An Accepter is a [link.Acceptor] that passes on the streams that it accepts.
type Accepter chan link.Stream

// Call implements [link.Acceptor]. Calls have to be made as streams.
func (Accepter) Call(*link.Call, bool) error { return link.ErrNoCall }

// Closed implements [link.Acceptor].
func (Accepter) Closed(error) {}

// Gone implements [link.Acceptor].
func (Accepter) Gone() {}

// Terms implements [link.Acceptor].
func (Accepter) Terms() link.Terms { return link.Terms{} }

// Accept implements [link.Acceptor].
func (a Accepter) Accept(s link.Stream, _ *link.Open) error {
	a <- s
	return nil
}
