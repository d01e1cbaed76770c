// Package delimited reads and writes messages behind their lengths, as connectconformance exchanges
// them with the programs that it starts.
package delimited

import (
	"encoding/binary"
	"io"

	"google.golang.org/protobuf/proto"
)

// Read reads a message. It returns io.EOF if r ends before one begins.
func Read(r io.Reader, m proto.Message) error {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return err
	}
	b := make([]byte, binary.BigEndian.Uint32(size[:]))
	if _, err := io.ReadFull(r, b); err != nil {
		return err
	}
	return proto.Unmarshal(b, m)
}

// Write writes a message with one call of w.Write.
func Write(w io.Writer, m proto.Message) error {
	b, err := proto.Marshal(m)
	if err != nil {
		return err
	}
	_, err = w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...))
	return err
}
