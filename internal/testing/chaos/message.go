package chaos

import (
	"encoding/binary"
	"fmt"

	testpb "google.golang.org/grpc/interop/grpc_testing"
)

// A Direction is a part of the contents of a message.
type Direction byte

const (
	Request Direction = 1
	Reply   Direction = 2
)

// Header is the length of each message's prefix: the tag of its call and its number.
const Header = 12

// Message returns the contents of message i of a call. No other message has the same.
func Message(tag uint64, i, size int, d Direction) *testpb.Payload {
	b := make([]byte, size)
	binary.LittleEndian.PutUint64(b, tag)
	binary.LittleEndian.PutUint32(b[8:], uint32(i))
	for k := Header; k < size; k++ {
		b[k] = byte(k)*byte(d) + byte(tag) + byte(i)
	}
	return &testpb.Payload{Body: b}
}

// Check returns an error if p is not message i of the call.
func Check(p *testpb.Payload, tag uint64, i, size int, d Direction) error {
	if n := len(p.GetBody()); n != size {
		return fmt.Errorf("message %d of call %x has %d bytes, want %d", i, tag, n, size)
	}
	if want := Message(tag, i, size, d); string(p.Body) != string(want.Body) {
		return fmt.Errorf("message %d of call %x is %x, want %x", i, tag, p.Body[:Header], want.Body[:Header])
	}
	return nil
}

// scribble overwrites a message, which its owner is allowed to do.
func scribble(p *testpb.Payload) { clear(p.GetBody()) }
