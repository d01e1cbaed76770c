package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/jhump/protoreflect/v2/protoresolve"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"
)

// An input makes messages of the JSON that a user passes.
type input struct {
	target string // what follows the name of a command that looks at the same server
	desc   protoreflect.MessageDescriptor
	types  protoresolve.SerializationResolver
}

// An item is a message that was read, or the error that ended reading.
type item struct {
	message proto.Message
	err     error
}

// args returns the messages in arguments.
func (in *input) args(args []string) (all []proto.Message, err error) {
	for i, arg := range args {
		m, err := in.message(i+1, []byte(arg))
		if err != nil {
			return nil, err
		}
		all = append(all, m)
	}
	return all, nil
}

// read passes on messages from r as they arrive, until r ends or ctx is done. A read cannot
// be interrupted, so the goroutine that reads can remain until r ends. The command does not
// wait for it.
func (in *input) read(ctx context.Context, r io.Reader) <-chan item {
	items := make(chan item)
	go func() {
		defer close(items)
		dec := json.NewDecoder(r)
		for n := 1; ; n++ {
			var next item
			var raw json.RawMessage
			if err := dec.Decode(&raw); errors.Is(err, io.EOF) {
				return
			} else if err != nil {
				next.err = malformed(n, err)
			} else {
				next.message, next.err = in.message(n, raw)
			}
			select {
			case items <- next:
			case <-ctx.Done():
				return
			}
			if next.err != nil {
				return
			}
		}
	}()
	return items
}

// message returns the n-th message from its JSON.
func (in *input) message(n int, text []byte) (proto.Message, error) {
	var raw json.RawMessage
	if err := json.Unmarshal(text, &raw); err != nil { // its errors are clearer than protojson's
		return nil, malformed(n, err)
	}
	m := dynamicpb.NewMessage(in.desc)
	if err := (protojson.UnmarshalOptions{Resolver: in.types}).Unmarshal(text, m); err != nil {
		return nil, fmt.Errorf("message %d is not a %s: %s; 'nearcall describe %s %s' shows its fields",
			n, in.desc.FullName(), reason(err), in.target, in.desc.FullName())
	}
	return m, nil
}

// malformed returns the error for the n-th message, which is no JSON.
func malformed(n int, err error) error {
	var syntax *json.SyntaxError
	if !errors.As(err, &syntax) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("cannot read message %d: %w", n, err)
	}
	text := err.Error()
	if errors.Is(err, io.ErrUnexpectedEOF) || strings.HasPrefix(text, "unexpected end") {
		text = "it ends too early; a brace, bracket or quote is open"
	}
	return fmt.Errorf("message %d is not JSON: %s", n, text)
}

// reason returns the text of an error of package protojson without the prefix "proto: ", whose
// space is a no-break space in some builds.
func reason(err error) string {
	text := strings.ReplaceAll(err.Error(), "\u00a0", " ")
	return strings.TrimPrefix(text, "proto: ")
}
