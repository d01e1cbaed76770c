package mux

import "github.com/nearcall/nearcall/internal/wire"

// Packed messages.
//
// A queued message takes as much credit as it has bytes, plus wire.MessageCost. For a
// small message, an item and a buffer take many times as much memory, and a peer could
// exhaust memory with calls that are never read. So while messages are queued, small
// ones that follow are packed behind the item of the message before them: one byte with
// the size and the compressed flag, then the message. The queued messages of a call
// thus take no more memory than a small multiple of their credit.
//
// Nothing is packed behind the first item while it is the only one. So nothing is
// packed if messages are received as they arrive, or for the reply of a unary call.

// maxPacked is the size of the largest message that is packed, in bytes. The size and a
// flag fit into one byte.
const maxPacked = 63

// somePacked is the initial capacity for packed messages, in bytes.
const somePacked = maxPacked + 1

// packs reports whether a message of n bytes is packed behind items[i], the last item
// before it. The message in items[i] is complete, because the pieces of a message
// arrive in sequence.
func (in *inbox) packs(i, n int) bool {
	return i > 0 && n <= maxPacked && in.items[i].message
}

// pack packs a message that has arrived in one piece, if it is small enough and there
// is an item to pack it behind. It reports whether it did.
func (in *inbox) pack(rc *wire.Received) bool {
	last := len(in.items) - 1
	if rc.More || rc.Placed || !in.packs(last, len(rc.Data)) {
		return false
	}
	in.items[last].pack(rc.Data, rc.Compressed)
	return true
}

// packLast packs the message of the last item once its last piece has arrived, under
// the same conditions as pack.
func (in *inbox) packLast() {
	last := len(in.items) - 1
	it := &in.items[last]
	if it.missing > 0 || !in.packs(last-1, it.size) {
		return
	}
	in.items[last-1].pack(it.data.B, it.compressed)
	it.data.Free()
	*it = item{}
	in.items = in.items[:last]
}

// pack appends a message to those packed behind the item.
func (it *item) pack(message []byte, compressed bool) {
	if it.behind == nil {
		it.behind = make([]byte, 0, somePacked)
	}
	head := byte(len(message)) << 1
	if compressed {
		head |= 1
	}
	it.behind = append(append(it.behind, head), message...)
}

// unpack moves the first packed message into the item, which must have none. It reports
// whether there was one.
func (it *item) unpack() bool {
	if len(it.behind) == 0 {
		return false
	}
	head, rest := it.behind[0], it.behind[1:]
	n := int(head >> 1)
	it.message, it.compressed, it.size, it.counts = true, head&1 != 0, n, true
	if n > 0 {
		it.data = newBuffer(n)
		it.data.B = append(it.data.B, rest[:n]...)
	}
	it.behind = rest[n:]
	return true
}
