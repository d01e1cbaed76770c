// Package codec encodes, decodes and copies the messages of RPCs.
//
// For each protobuf message type it compiles a program, which knows how such messages lie in
// memory. Programs encode and decode common messages, and leave all others entirely to
// protobuf-go, so that the results and errors are protobuf-go's.
//
// Two peers in one process need no bytes between them. The receiver must see the value that
// marshalling the sender's message and unmarshalling the bytes would produce. [Codec.Copy] produces
// that value directly if it knows the Go type. Otherwise it reports that it does not, and the
// caller uses [Codec.Append] and [Codec.Decode].
package codec

import (
	"errors"
	"fmt"

	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"

	"github.com/nearcall/nearcall/internal/message"
)

// Proto returns the codec that replaces grpc-go's "proto" codec.
func Proto() Codec { return protoCodec{} }

// protoCodec accepts and rejects the same values as google.golang.org/grpc/encoding/proto
// and produces the same results. It implements [message.Codec].
type protoCodec struct{}

// errCyclic reports a message that contains itself. protobuf-go has no such error: there such a
// message overflows the stack.
var errCyclic = errors.New("proto: message contains itself")

func (protoCodec) Name() string { return grpcproto.Name }

func (protoCodec) Size(v any) (int, error) {
	if v == nil {
		return 0, nil
	}
	if p := programOf(v); !p.leftToProtobufGo() && p.encoding.tries() {
		if n := p.encodedSize(dataOf(v), mostNested); n >= 0 {
			return n, nil
		}
		p.encoding.failed()
	}
	m, err := marshalable(v)
	if err != nil {
		return 0, err
	}
	return proto.Size(m), nil
}

func (protoCodec) Append(b []byte, v any) ([]byte, error) {
	if v == nil {
		return b, nil
	}
	if p := programOf(v); !p.leftToProtobufGo() && p.encoding.tries() {
		if out, ok := p.appendTo(b, dataOf(v)); ok {
			return out, nil
		}
		p.encoding.failed()
	}
	return marshalAppend(b, v)
}

// marshalAppend does the work of Append with protobuf-go.
func marshalAppend(b []byte, v any) ([]byte, error) {
	m, err := marshalable(v)
	if err != nil {
		return b, err
	}
	return proto.MarshalOptions{}.MarshalAppend(b, m)
}

func (protoCodec) AppendWithin(b []byte, v any) (_ []byte, ok bool) {
	if v == nil {
		return b, true
	}
	p := programOf(v)
	if p.leftToProtobufGo() || !p.encoding.tries() {
		return b, false
	}
	if out, ok := p.appendAtOnce(b, dataOf(v)); ok {
		return out, true
	}
	return b, false
}

func (c protoCodec) Sized(v any) (message.Message, error) {
	if v != nil {
		if p := programOf(v); !p.leftToProtobufGo() && p.encoding.tries() {
			if n := p.encodedSize(dataOf(v), mostNested); n >= 0 {
				return message.Measured(measured{p, v, n}, n), nil
			}
			p.encoding.failed()
		}
	}
	if !c.Copies(v) { // computing its size may run user code
		return message.Live(v, c), nil
	}
	n, err := c.Size(v)
	return message.Measured(measured{nil, v, n}, n), err
}

func (protoCodec) Immutable() bool { return false }

// Decode implements [message.Codec]. If data.Stay is set and one field takes up most of data.Bytes,
// the message can refer to data.Bytes.
func (protoCodec) Decode(data message.Data, v any) (kept bool, err error) {
	b := data.Bytes
	if data.Buffers != nil {
		buf := data.Buffers.MaterializeToBuffer(mem.DefaultBufferPool())
		defer buf.Free()
		b = buf.ReadOnlyData()
	}
	var keep *keeping
	if data.Stay {
		keep = &keeping{least: mostly(len(b))}
	}
	if v != nil && programOf(v).replaceBy(v, b, keep) {
		markUsed(v)
		return keep != nil && keep.kept, nil
	}
	return false, unmarshal(b, v)
}

func (protoCodec) KeepsReferences() bool { return false }

func unmarshal(b []byte, v any) error {
	m := messageOf(v)
	if m == nil {
		return fmt.Errorf("failed to unmarshal, message is %T, want proto.Message", v)
	}
	if !m.ProtoReflect().IsValid() {
		return fmt.Errorf("failed to unmarshal, message is a nil %T", v)
	}
	return proto.Unmarshal(b, m)
}

// replaceBy resets v, which has p's type, and decodes b into it. keep is as in decodeMode.
// replaceBy returns false if protobuf-go must decode b.
func (p *program) replaceBy(v any, b []byte, keep *keeping) bool {
	if p.leftToProtobufGo() || dataOf(v).isNil() || !p.decoding.tries() {
		return false
	}
	if !dataOf(v).zero(p.size) {
		proto.Reset(v.(proto.Message))
	}
	ok := p.decode(dataOf(v), b, decodeMode{maxDepth, keep})
	if !ok {
		p.decoding.failed()
	}
	return ok
}

func (c protoCodec) Copy(dst, src any) (bound int, ok bool, err error) {
	if src == nil {
		return 0, copyEmpty(dst), nil
	}
	p := programOfBoth(dst, src)
	if p == nil || dataOf(dst).isNil() {
		return 0, false, nil
	}
	var f *failure
	switch {
	case !dataOf(src).isNil():
		bound, f = p.replace(dst, src)
	case p.requires:
		f = refused
	default:
		proto.Reset(dst.(proto.Message))
	}
	switch {
	case f == nil:
		markUsed(dst)
		return bound, true, nil
	case f.cyclic():
		return 0, false, errCyclic
	default:
		// A refused message is copied through bytes, too. Marshalling returns the precise error,
		// or succeeds: in some recursive types protobuf-go does not check required fields.
		return 0, false, nil
	}
}

// Copies implements [message.Codec]. If a part of v may need user code to marshal, Copies
// makes a trial copy. So the sender encodes a message that cannot be copied, and a
// receiver never runs the sender's code.
func (protoCodec) Copies(v any) bool {
	if v == nil {
		return true
	}
	p := programOf(v)
	if p.foreign || p.plain {
		return !p.foreign
	}
	_, _, f := p.clone(dataOf(v), maxDepth)
	return f != throughBytes && f != refused
}

func (protoCodec) New(src any) any {
	if src == nil {
		return nil
	}
	p := programOf(src)
	if p.foreign {
		return nil
	}
	return p.newMessage()
}

func (protoCodec) Move(dst, src any) bool {
	p := programOfBoth(dst, src)
	if p == nil || dataOf(dst).isNil() || dataOf(src).isNil() {
		return false
	}
	if dataOf(dst) != dataOf(src) {
		p.share(dataOf(dst), dataOf(src))
		proto.Reset(src.(proto.Message))
	}
	markUsed(dst)
	return true
}

// markUsed puts v, which has a program, into the state after proto.Unmarshal: reflect.DeepEqual
// sees whether ProtoReflect was called.
func markUsed(v any) { v.(proto.Message).ProtoReflect() }

// copyEmpty empties dst. It returns false if no program supports dst's type, or if the type has
// required fields, which decoding must report as missing.
func copyEmpty(dst any) bool {
	p := programOfBoth(dst, dst)
	if p == nil || p.requires || dataOf(dst).isNil() {
		return false
	}
	proto.Reset(dst.(proto.Message))
	return true
}

// programOfBoth returns the program for dst and src. It returns nil if they have
// different Go types, or a type that cannot be copied.
func programOfBoth(dst, src any) *program {
	if src == nil || typeOf(dst) != typeOf(src) {
		return nil
	}
	p := programOf(src)
	if p.foreign {
		return nil
	}
	return p
}

func marshalable(v any) (proto.Message, error) {
	m := messageOf(v)
	if m == nil {
		return nil, fmt.Errorf("proto: failed to marshal, message is %T, want proto.Message", v)
	}
	return m, nil
}

// messageOf converts v as grpc-go's codec does. It returns nil if v is no message.
func messageOf(v any) proto.Message {
	switch v := v.(type) {
	case protoadapt.MessageV1:
		return protoadapt.MessageV2Of(v)
	case protoadapt.MessageV2:
		return v
	}
	return nil
}

// A Codec is a [message.Codec]; see there for the contract of each method.
type Codec = message.Codec
