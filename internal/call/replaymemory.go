package call

import "github.com/nearcall/nearcall/internal/link"

// A replayMemory has the encoded messages of a client stream that are kept for replay, one after
// the other in few pieces of memory. A message for itself would take several.
type replayMemory struct{ last []byte } // the piece that is being filled

const (
	firstReplayPiece = 512
	maxReplayPiece   = 32 << 10

	// roomToEncode is enough to encode small messages without knowing their size.
	roomToEncode = 4 << 10
)

// encode is the function encode, with small messages in r's memory.
func (r *replayMemory) encode(m *link.Message) error {
	if m.Bound() > 0 {
		return nil // it is encoded
	}
	for range 2 {
		at := len(r.last)
		if b, ok := m.AppendWithin(r.last); ok {
			r.last = b
			*m = link.EncodedBytes(b[at:len(b):len(b)])
			return nil
		}
		if cap(r.last)-at >= roomToEncode {
			break
		}
		r.last = make([]byte, 0, min(max(4*cap(r.last), firstReplayPiece), maxReplayPiece))
	}
	return encode(m)
}
