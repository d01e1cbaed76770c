package nearcall

import (
	"fmt"
	"net"

	"github.com/nearcall/nearcall/internal/transport/inproc"
)

// A Listener is what [Server.Serve] serves. Peers may arrive at it in other
// ways than as byte streams, so its Accept may return an error; pass it to
// Serve as it is.
type Listener interface {
	net.Listener

	// Target returns what a client passes to [NewClient] to arrive here.
	Target() string
}

// A ListenOption configures [Listen]. There are none yet.
type ListenOption interface{ applyListen(*listenOptions) }

type listenOptions struct{}

// Listen opens target for a server. The one target that can be listened on is
// inproc:NAME, which takes NAME within the process until the listener is
// closed. A name that is taken is an error.
func Listen(target string, opts ...ListenOption) (Listener, error) {
	var o listenOptions
	for _, opt := range opts {
		if opt != nil {
			opt.applyListen(&o)
		}
	}
	t, err := parseTarget(target)
	if err != nil {
		return nil, fmt.Errorf("nearcall: cannot listen on %q: %w", target, err)
	}
	if t.scheme != schemeInproc {
		return nil, fmt.Errorf("nearcall: cannot listen on %q: only inproc:NAME can be listened on", target)
	}
	return inproc.Listen(t.rest)
}
