//go:build ignore

// This program is what protobuf's conformance tests test: it encodes and decodes with
// nearcall's codec. `make protobuf-conformance` generates the messages that it imports,
// without which it does not compile, and runs the tests.
package main

import (
	"bufio"
	"encoding/binary"
	"flag"
	"fmt"
	"io"
	"log"
	"os"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/nearcall/nearcall/internal/codec"
	"github.com/nearcall/nearcall/internal/message"

	"github.com/nearcall/nearcall/interop/protobuf/generated/conformance"
	_ "github.com/nearcall/nearcall/interop/protobuf/generated/editionproto2"
	_ "github.com/nearcall/nearcall/interop/protobuf/generated/editionproto3"
	_ "github.com/nearcall/nearcall/interop/protobuf/generated/editions"
	_ "github.com/nearcall/nearcall/interop/protobuf/generated/proto2"
	_ "github.com/nearcall/nearcall/interop/protobuf/generated/proto3"
)

var reference = flag.Bool("reference", false, "encode and decode with protobuf-go, to compare")

func main() {
	flag.Parse()
	in, out := bufio.NewReader(os.Stdin), bufio.NewWriter(os.Stdout)
	for {
		if err := answer(in, out); err == io.EOF {
			return
		} else if err != nil {
			log.Fatal(err)
		}
	}
}

// answer reads a request and writes the response, each after its length.
func answer(in io.Reader, out *bufio.Writer) error {
	var length [4]byte
	if _, err := io.ReadFull(in, length[:]); err != nil {
		return err
	}
	b := make([]byte, binary.LittleEndian.Uint32(length[:]))
	if _, err := io.ReadFull(in, b); err != nil {
		return fmt.Errorf("a request of %d bytes: %w", len(b), err)
	}
	var request conformance.ConformanceRequest
	if err := proto.Unmarshal(b, &request); err != nil {
		return err
	}
	b, err := proto.Marshal(run(&request))
	if err != nil {
		return err
	}
	binary.LittleEndian.PutUint32(length[:], uint32(len(b)))
	_, _ = out.Write(length[:])
	_, _ = out.Write(b)
	return out.Flush()
}

// run parses the request's payload and serializes it in the format that it asks for.
func run(r *conformance.ConformanceRequest) *conformance.ConformanceResponse {
	t, err := protoregistry.GlobalTypes.FindMessageByName(protoreflect.FullName(r.MessageType))
	if err != nil {
		return &conformance.ConformanceResponse{Result: &conformance.ConformanceResponse_Skipped{Skipped: err.Error()}}
	}
	m := t.New().Interface()
	switch p := r.Payload.(type) {
	case *conformance.ConformanceRequest_ProtobufPayload:
		err = unmarshal(p.ProtobufPayload, m)
	case *conformance.ConformanceRequest_JsonPayload:
		err = protojson.UnmarshalOptions{
			DiscardUnknown: r.TestCategory == conformance.TestCategory_JSON_IGNORE_UNKNOWN_PARSING_TEST,
		}.Unmarshal([]byte(p.JsonPayload), m)
	case *conformance.ConformanceRequest_TextPayload:
		err = prototext.Unmarshal([]byte(p.TextPayload), m)
	default:
		return &conformance.ConformanceResponse{Result: &conformance.ConformanceResponse_Skipped{Skipped: "the payload's format is not supported"}}
	}
	if err != nil {
		return &conformance.ConformanceResponse{Result: &conformance.ConformanceResponse_ParseError{ParseError: err.Error()}}
	}
	var b []byte
	var response conformance.ConformanceResponse
	switch r.RequestedOutputFormat {
	case conformance.WireFormat_PROTOBUF:
		b, err = marshal(m)
		response.Result = &conformance.ConformanceResponse_ProtobufPayload{ProtobufPayload: b}
	case conformance.WireFormat_JSON:
		b, err = protojson.Marshal(m)
		response.Result = &conformance.ConformanceResponse_JsonPayload{JsonPayload: string(b)}
	case conformance.WireFormat_TEXT_FORMAT:
		b, err = prototext.MarshalOptions{EmitUnknown: r.PrintUnknownFields}.Marshal(m)
		response.Result = &conformance.ConformanceResponse_TextPayload{TextPayload: string(b)}
	default:
		response.Result = &conformance.ConformanceResponse_Skipped{Skipped: "the format is not supported"}
	}
	if err != nil {
		response.Result = &conformance.ConformanceResponse_SerializeError{SerializeError: err.Error()}
	}
	return &response
}

// settle makes the codec try its own way on the next message of m's type, whatever it met
// before.
func settle(m proto.Message) {
	for range 64 {
		empty := m.ProtoReflect().New().Interface()
		_, _ = codec.Proto().Size(empty)
		_, _ = codec.Proto().Decode(message.Data{}, empty)
	}
}

func unmarshal(b []byte, m proto.Message) error {
	if *reference {
		return proto.Unmarshal(b, m)
	}
	settle(m)
	_, err := codec.Proto().Decode(message.Data{Bytes: b}, m)
	return err
}

// marshal encodes m with and without room for it, which takes two ways in the codec.
func marshal(m proto.Message) ([]byte, error) {
	if *reference {
		return proto.Marshal(m)
	}
	settle(m)
	first, err := codec.Proto().Append(make([]byte, 0, 512), m)
	if err != nil {
		return nil, err
	}
	second, err := codec.Proto().Append(nil, m)
	if n, _ := codec.Proto().Size(m); len(first) != len(second) || n != len(first) {
		return nil, fmt.Errorf("encoded in %d and %d bytes; the size is %d", len(first), len(second), n)
	}
	return second, err
}
