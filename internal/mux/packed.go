package mux

import "github.com/nearcall/nearcall/internal/wire"

// Packed messages.
//
// A message that waits takes as much credit as it has bytes and a few more
// (wire.MessageCost). For a small one an item and a buffer would be many times as
// much memory, which a peer could fill with calls that nobody reads. So where
// messages wait, small ones that follow are packed behind the item of the one before
// them: each a byte that says its size and whether it is compressed, and then its
// bytes. What waits of a call takes no more than a small multiple of its credit.
//
// The first item has nothing packed behind it as long as it is the only one: where
// messages are received as they come, and for the replies of a unary call, nothing
// is packed at all.

// maxPacked is the size of a message that is packed at most, in bytes. It and a flag
// fit into the byte before the message.
const maxPacked = 63

// somePacked is how much memory is taken for packed messages at first, in bytes.
const somePacked = maxPacked + 1

// packs reports whether a message of n bytes is packed where i is the number of the
// last of the items before it, which is there as a whole: the pieces of a message
// follow one another.
func (in *inbox) packs(i, n int) bool {
	return i > 0 && n <= maxPacked && in.items[i].message
}

// pack takes a message that begins, if it is all there and small and can be packed.
// It reports whether it did.
func (in *inbox) pack(rc *wire.Received) bool {
	last := len(in.items) - 1
	if rc.More || rc.Placed || !in.packs(last, len(rc.Data)) {
		return false
	}
	in.items[last].pack(rc.Data, rc.Compressed)
	return true
}

// packLast packs the message of the last item, all of whose pieces have come, if it is
// small and can be packed.
func (in *inbox) packLast() {
	last := len(in.items) - 1
	it := &in.items[last]
	if it.missing > 0 || !in.packs(last-1, it.size) {
		return
	}
	in.items[last-1].pack(it.data.b, it.compressed)
	it.data.free()
	*it = item{}
	in.items = in.items[:last]
}

// pack puts a message behind that of the item, and those that are there already.
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

// unpack makes the first of the packed messages that of the item, which has none. It
// reports whether there is one.
func (it *item) unpack() bool {
	if len(it.behind) == 0 {
		return false
	}
	head, rest := it.behind[0], it.behind[1:]
	n := int(head >> 1)
	it.message, it.compressed, it.size, it.counts = true, head&1 != 0, n, true
	if n > 0 {
		it.data = newBuffer(n)
		it.data.b = append(it.data.b, rest[:n]...)
	}
	it.behind = rest[n:]
	return true
}
