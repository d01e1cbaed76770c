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

// encode returns m encoded. The bytes do not change.
func (r *replayMemory) encode(m *link.Message) (link.Message, error) {
	for range 2 {
		at := len(r.last)
		if b, ok := m.AppendAtOnce(r.last); ok {
			r.last = b
			return link.EncodedBytes(b[at:len(b):len(b)]), nil
		}
		if cap(r.last)-at >= roomToEncode {
			break
		}
		r.last = make([]byte, 0, min(max(4*cap(r.last), firstReplayPiece), maxReplayPiece))
	}
	return m.Encode()
}
