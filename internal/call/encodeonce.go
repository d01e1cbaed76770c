package call

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/link"
)

// As in grpc-go, a user's codec encodes each message only once for all attempts of a call, even if
// a limit or a stats handler needs the message's size.

// encodeOnce returns m encoded, for all attempts of a call to that peer. The bytes can be memory
// of m's value. For a peer in this process they are a copy if the value can change, because that
// peer can use them after the call.
func encodeOnce(m *link.Message, peer *link.Peer) (*link.Message, error) {
	if !peer.Local {
		sized, err := m.Sized()
		if err != nil {
			return nil, err
		}
		defer sized.Free()
		m = &sized
	}
	frozen, err := m.Freeze()
	if err != nil {
		return nil, err
	}
	return &frozen, nil
}

// makeSizeKnown encodes m, which is about to be sent, if only a user's codec knows its size. The
// error is a *link.SendError.
func makeSizeKnown(m *link.Message) error {
	if m.Copies() {
		return nil
	}
	return encode(m)
}

// encode makes m an encoded message. Its bytes do not change. The error is a *link.SendError.
func encode(m *link.Message) error {
	if m.Bound() > 0 {
		return nil // it is encoded
	}
	b, err := m.Append(nil)
	if err == nil {
		*m = link.EncodedBytes(b)
	}
	return err
}

// checkSize returns an error if m is larger than limit bytes. As in grpc-go the compressed size
// counts. Without a limit, which is the default, checkSize does not compute m's size. It
// compresses m once, and makes m the compressed message. For a peer in this process it compresses
// m only to count, and only if m is larger than limit without compression.
func checkSize(m *link.Message, limit int, compressor string, peer *link.Peer) error {
	if limit >= noLimit {
		return nil
	}
	if err := makeSizeKnown(m); err != nil {
		return linkStatus(err)
	}
	n, err := m.Size()
	if err != nil {
		return linkStatus(err)
	}
	compressor = link.Compressor(compressor)
	if n > 0 && compressor != "" && (n > limit || !peer.Local) {
		packed, ok := m.Compressed(compressor)
		if !ok {
			p, err := link.Prepare(m, compressor)
			if err != nil {
				return linkStatus(err)
			}
			prepared := p.Message()
			packed, _ = prepared.Compressed(compressor)
			if !peer.Local {
				*m = prepared
			}
		}
		n = len(packed)
	}
	if n > limit {
		return status.Errorf(codes.ResourceExhausted, "trying to send message larger than max (%d vs. %d)", n, limit)
	}
	return nil
}
