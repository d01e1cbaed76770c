package main

import (
	"bytes"
	"context"
	"fmt"
	"io"

	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/protobuf/proto"

	"github.com/nearcall/nearcall/bench/internal/benchpb"
)

// A Kind is a kind of call. An operation is one call unless the kind's comment says
// otherwise.
type Kind struct {
	Name  string
	Unary bool // latencies are recorded for unary calls only
	open  func(ctx context.Context, conn Conn, row Row) (lane, error)
}

// A lane is the work of one caller. op performs an operation, and fails on a wrong
// answer. With closely it compares the whole answer; otherwise only lengths and ends, so
// that the comparison does not dominate the measurement. end, which may be nil, ends the
// lane's stream.
type lane struct {
	op  func(closely bool) error
	end func() error
}

var (
	// Empty sends and receives an empty message.
	Empty = Kind{"empty call", true, openEmpty}

	// Pair sends two integers and receives the same.
	Pair = Kind{"two integers", true, openPair}

	// Text sends a string and receives the same.
	Text = Kind{"string", true, openText}

	// Unary sends a payload and receives one of the same size.
	Unary = Kind{"unary", true, openUnary}

	// Record sends strings, a map and nested messages, and receives the same.
	Record = Kind{"nested record", true, openRecord}

	// ServerStream sends one message and receives Row.Messages messages and the end of the
	// stream.
	ServerStream = Kind{"server stream", false, openServerStream}

	// ClientStream sends Row.Messages messages and receives one, how many bytes there were.
	ClientStream = Kind{"client stream", false, openClientStream}

	// BidiEcho keeps one stream open. An operation is one message there and back.
	BidiEcho = Kind{"bidi echo", false, openBidiEcho}
)

func openEmpty(ctx context.Context, conn Conn, _ Row) (lane, error) {
	in := new(testpb.Empty)
	return lane{op: func(bool) error {
		out, err := conn.Test.EmptyCall(ctx, in)
		if err != nil {
			return err
		}
		return check("bytes in the reply", len(out.ProtoReflect().GetUnknown()), 0)
	}}, nil
}

func openPair(ctx context.Context, conn Conn, _ Row) (lane, error) {
	in := &benchpb.Pair{First: 20_417_731, Second: 1_767_225_600}
	return lane{op: func(bool) error {
		out, err := conn.Records.EchoPair(ctx, in)
		if err != nil {
			return err
		}
		if out.GetFirst() != in.First || out.GetSecond() != in.Second {
			return fmt.Errorf("wrong answer: the integers are %v, want %v", out, in)
		}
		return nil
	}}, nil
}

func openText(ctx context.Context, conn Conn, row Row) (lane, error) {
	in := &benchpb.Text{Text: string(payload(row.Size).Body)}
	return lane{op: func(bool) error {
		out, err := conn.Records.EchoText(ctx, in)
		if err != nil {
			return err
		}
		if out.GetText() != in.Text {
			return fmt.Errorf("wrong answer: the text is %q, want %q", out.GetText(), in.Text)
		}
		return nil
	}}, nil
}

func openUnary(ctx context.Context, conn Conn, row Row) (lane, error) {
	in := &testpb.SimpleRequest{Payload: payload(row.Size)}
	return lane{op: func(closely bool) error {
		out, err := conn.Test.UnaryCall(ctx, in)
		if err != nil {
			return err
		}
		return checkPayload("the reply", out.GetPayload(), in.Payload, closely)
	}}, nil
}

func openRecord(ctx context.Context, conn Conn, _ Row) (lane, error) {
	in := record()
	return lane{op: func(closely bool) error {
		out, err := conn.Records.Echo(ctx, in)
		if err != nil {
			return err
		}
		return checkRecord(out, in, closely)
	}}, nil
}

func openServerStream(ctx context.Context, conn Conn, row Row) (lane, error) {
	in := &testpb.StreamingOutputCallRequest{Payload: payload(row.Size)}
	return lane{op: func(closely bool) error {
		s, err := conn.Test.StreamingOutputCall(ctx, in)
		if err != nil {
			return err
		}
		for n := 0; ; n++ {
			out, err := s.Recv()
			if err == io.EOF {
				return check("messages", n, row.Messages)
			}
			if err != nil {
				return err
			}
			if err := checkPayload("a message", out.GetPayload(), in.Payload, closely); err != nil {
				return err
			}
		}
	}}, nil
}

func openClientStream(ctx context.Context, conn Conn, row Row) (lane, error) {
	in := &testpb.StreamingInputCallRequest{Payload: payload(row.Size)}
	return lane{op: func(bool) error {
		s, err := conn.Test.StreamingInputCall(ctx)
		if err != nil {
			return err
		}
		for range row.Messages {
			if err := s.Send(in); err != nil {
				return err
			}
		}
		out, err := s.CloseAndRecv()
		if err != nil {
			return err
		}
		return check("bytes", int(out.GetAggregatedPayloadSize()), row.Messages*row.Size)
	}}, nil
}

func openBidiEcho(ctx context.Context, conn Conn, row Row) (lane, error) {
	s, err := conn.Test.FullDuplexCall(ctx)
	if err != nil {
		return lane{}, err
	}
	in := &testpb.StreamingOutputCallRequest{Payload: payload(row.Size)}
	op := func(closely bool) error {
		if err := s.Send(in); err != nil {
			return err
		}
		out, err := s.Recv()
		if err != nil {
			return err
		}
		return checkPayload("the echo", out.GetPayload(), in.Payload, closely)
	}
	end := func() error {
		if err := s.CloseSend(); err != nil {
			return err
		}
		if out, err := s.Recv(); err != io.EOF {
			return fmt.Errorf("the stream ended with %v, %v, want io.EOF", out, err)
		}
		return nil
	}
	return lane{op, end}, nil
}

// payload returns a payload whose bytes vary, so that misplaced data is noticed.
func payload(size int) *testpb.Payload {
	body := make([]byte, size)
	for i := range body {
		body[i] = byte('a' + i%23 + i>>10%3)
	}
	return &testpb.Payload{Body: body}
}

// record returns an order as a shop might store it.
func record() *benchpb.Record {
	return &benchpb.Record{
		Id: "ord-2041-7731", Title: "Spring order for the tea room", Created: 1767225600, Total: 214.4,
		Owner: &benchpb.Person{
			Name: "Ines Sørensen", Mail: "ines@tearoom.example",
			Address: &benchpb.Address{Street: "12 Harbour Lane", City: "Aarhus", Country: "DK"},
		},
		Lines: []*benchpb.Line{
			{Item: "sencha, 500 g", Quantity: 4, Price: 18.5},
			{Item: "gyokuro, 100 g", Quantity: 2, Price: 31},
			{Item: "cast-iron pot", Quantity: 1, Price: 64.4},
			{Item: "paper filters", Quantity: 14, Price: 1},
		},
		Labels: map[string]string{
			"channel": "web", "priority": "normal", "region": "eu-north", "carrier": "post", "gift": "no", "currency": "EUR",
		},
		Tags: []string{"tea", "wholesale", "returning-customer"},
	}
}

func check(what string, got, want int) error {
	if got != want {
		return fmt.Errorf("wrong answer: %d %s, want %d", got, what, want)
	}
	return nil
}

func checkPayload(of string, got, want *testpb.Payload, closely bool) error {
	a, b := got.GetBody(), want.GetBody()
	if len(a) != len(b) {
		return check("bytes in "+of, len(a), len(b))
	}
	if len(a) > 0 && (a[0] != b[0] || a[len(a)-1] != b[len(b)-1]) || closely && !bytes.Equal(a, b) {
		return fmt.Errorf("wrong answer: the bytes in %s are not those that were sent", of)
	}
	return nil
}

func checkRecord(got, want *benchpb.Record, closely bool) error {
	for _, c := range [...]struct {
		what      string
		got, want int
	}{
		{"lines in the record", len(got.GetLines()), len(want.Lines)},
		{"labels in the record", len(got.GetLabels()), len(want.Labels)},
		{"tags in the record", len(got.GetTags()), len(want.Tags)},
	} {
		if err := check(c.what, c.got, c.want); err != nil {
			return err
		}
	}
	if got.Id != want.Id || got.GetOwner().GetAddress().GetCity() != want.Owner.Address.City || closely && !proto.Equal(got, want) {
		return fmt.Errorf("wrong answer: the record is %v, want %v", got, want)
	}
	return nil
}
