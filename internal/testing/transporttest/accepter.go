package transporttest

import "github.com/nearcall/nearcall/internal/link"

// An Accepter is a [link.Acceptor] that sends the streams it accepts to the channel.
type Accepter chan link.Stream

// Closed implements [link.Acceptor].
func (Accepter) Closed(error) {}

// Gone implements [link.Acceptor].
func (Accepter) Gone() {}

// Terms implements [link.Acceptor].
func (Accepter) Terms() link.Terms { return link.Terms{} }

// HandleStream implements [link.Acceptor].
func (a Accepter) HandleStream(s link.Stream, _ *link.CallHeader) error {
	a <- s
	return nil
}
