package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/nearcall/nearcall/cmd/nearcall/internal/schema"
)

var callCommand = command{
	name: "call", args: "TARGET [METHOD] [JSON ...]", about: "call a method with messages in JSON",
	least: 1, most: 1 << 30, setup: callJob,
	more: "METHOD is pkg.Service/Method or pkg.Service.Method. Each JSON argument is a message. Without them and\n" +
		"-d, messages are read from stdin if it is not a terminal, or if the argument is -, or if the method\n" +
		"takes a stream. They are sent as they arrive. Without any message an empty one is sent, but not to\n" +
		"a method that takes a stream.\n\n" +
		"  nearcall call unix:/tmp/greeter.sock greet.Greeter/Greet '{\"name\": \"world\"}'\n" +
		"  nearcall call -d @request.json unix:/tmp/greeter.sock greet.Greeter/Greet\n",
}

// callFlags are the flags of nearcall call.
type callFlags struct {
	*connFlags
	data                      *string // nil without -d
	verbose, compact, emitAll bool
}

// callJob adds the flags of nearcall call to flags.
func callJob(flags *flag.FlagSet) job {
	f := &callFlags{connFlags: newConnFlags(flags)}
	f.addFiles(flags)
	flags.Func("d", "send these `messages`: JSON, one after the other; @FILE is a file that has them, and @, @- or - is stdin", func(s string) error {
		f.data = &s
		return nil
	})
	flags.BoolVar(&f.verbose, "v", false, "print the headers that are sent (>) and the headers and trailers that arrive (<) on stderr")
	flags.BoolVar(&f.compact, "compact", false, "print each reply in one line")
	flags.BoolVar(&f.emitAll, "emit-defaults", false, "print fields that have their default values, too")
	return job{do: f.do, complete: f.completion((*remote).methods)}
}

func (f *callFlags) do(ctx context.Context, args []string, std stdio) error {
	ctx, p, err := f.open(ctx, args[0])
	if err != nil {
		return err
	}
	defer p.close()
	if len(args) == 1 {
		return p.hint(p.offerMethods(std.out))
	}
	method, err := p.method(args[1])
	if err != nil {
		return p.hint(err)
	}
	for _, m := range []protoreflect.MessageDescriptor{method.Input(), method.Output()} {
		if err := schema.Complete(m); err != nil {
			return err
		}
	}
	c := &caller{remote: p, method: method, std: std, verbose: f.verbose, out: newOutput(p.schema.Types, std.err)}
	c.out.compact, c.out.emitAll = f.compact, f.emitAll
	return c.call(ctx, f.data, args[2:])
}

// offerMethods prints the methods, and returns an error that asks for one of them.
func (p *remote) offerMethods(w io.Writer) error {
	names, err := p.methods()
	if err != nil {
		return err
	}
	for _, name := range names {
		fmt.Fprintln(w, clean(name))
	}
	return usageError(fmt.Sprintf("name one of these methods: nearcall call %s METHOD [JSON ...]", p.again))
}

// A caller makes one call.
type caller struct {
	*remote
	method  protoreflect.MethodDescriptor
	std     stdio
	out     *output
	verbose bool
}

// call makes the call with the messages of -d, in args or from stdin.
func (c *caller) call(ctx context.Context, data *string, args []string) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	in := &input{target: c.again, desc: c.method.Input(), types: c.schema.Types}
	from, err := c.source(data, args)
	if err != nil {
		return err
	}
	if from == nil {
		messages, err := in.args(args)
		if err != nil {
			return err
		}
		return c.callWith(ctx, cancel, messages, nil)
	}
	if isTerminal(from) {
		fmt.Fprintln(c.std.err, "nearcall: messages are read from the terminal; Ctrl-D ends them")
	}
	items := in.read(ctx, from)
	if c.method.IsStreamingClient() {
		return c.callWith(ctx, cancel, nil, items)
	}
	messages, err := collect(ctx, items)
	if err != nil {
		return err
	}
	return c.callWith(ctx, cancel, messages, nil)
}

// source returns what the messages are read from, or nil if args are the messages.
func (c *caller) source(data *string, args []string) (io.Reader, error) {
	if data == nil {
		switch {
		case len(args) == 1 && args[0] == "-", len(args) == 0 && (c.method.IsStreamingClient() || !isTerminal(c.std.in)):
			return c.std.in, nil
		case slices.Contains(args, "-"):
			return nil, usageError("- stands for messages from stdin, and other messages cannot be beside it")
		}
		return nil, nil
	}
	file, isFile := strings.CutPrefix(*data, "@")
	switch {
	case len(args) > 0:
		return nil, usageError("-d has the messages, and other messages cannot be beside it")
	case *data == "-", isFile && (file == "" || file == "-"):
		return c.std.in, nil
	case isFile:
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("-d: %w", err)
		}
		return bytes.NewReader(text), nil
	}
	return strings.NewReader(*data), nil
}

// collect returns the items, but no more than two: the method takes one message, so a second one
// is already an error.
func collect(ctx context.Context, items <-chan item) (all []proto.Message, err error) {
	for len(all) < 2 {
		select {
		case next, ok := <-items:
			if !ok || next.err != nil {
				return all, next.err
			}
			all = append(all, next.message)
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		}
	}
	return all, nil
}

// callWith sends messages, then items, and prints what arrives.
func (c *caller) callWith(ctx context.Context, cancel context.CancelCauseFunc, messages []proto.Message, items <-chan item) error {
	if !c.method.IsStreamingClient() {
		switch len(messages) {
		case 0:
			messages = []proto.Message{dynamicpb.NewMessage(c.method.Input())}
		case 1:
		default:
			return fmt.Errorf("%s takes one message, and there are more", c.method.FullName())
		}
	}
	path := fmt.Sprintf("/%s/%s", c.method.Parent().FullName(), c.method.Name())
	if c.verbose {
		fmt.Fprintf(c.std.err, "> %s\n", path)
		sent, _ := metadata.FromOutgoingContext(ctx)
		printMetadata(c.std.err, "> ", sent)
	}
	desc := &grpc.StreamDesc{ClientStreams: c.method.IsStreamingClient(), ServerStreams: c.method.IsStreamingServer()}
	stream, err := c.conn.NewStream(ctx, desc, path)
	if err != nil {
		return c.ended(ctx, err)
	}
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		if err := send(ctx, stream, messages, items); err != nil {
			cancel(err)
		}
	}()
	err = c.receive(stream)
	err = c.ended(ctx, err)
	cancel(nil)
	<-sent
	return err
}

// send sends messages, then items, until the stream ends. It returns the reason if it cannot
// go on.
func send(ctx context.Context, stream grpc.ClientStream, messages []proto.Message, items <-chan item) error {
	for _, m := range messages {
		if err := stream.SendMsg(m); err != nil {
			return unlessEnded(err)
		}
	}
	for items != nil {
		select {
		case next, ok := <-items:
			if !ok {
				items = nil
				break
			}
			if next.err != nil {
				return next.err
			}
			if err := stream.SendMsg(next.message); err != nil {
				return unlessEnded(err)
			}
		case <-ctx.Done():
			return nil
		}
	}
	return unlessEnded(stream.CloseSend())
}

// unlessEnded returns nil if err says only that the stream has ended. Receiving returns why it
// has.
func unlessEnded(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// receive prints what arrives until the stream ends.
func (c *caller) receive(stream grpc.ClientStream) error {
	if c.verbose {
		if header, err := stream.Header(); err == nil {
			printMetadata(c.std.err, "< ", header)
		}
	}
	for {
		m := dynamicpb.NewMessage(c.method.Output())
		err := stream.RecvMsg(m)
		if err == nil {
			if err := c.out.print(c.std.out, m); err != nil {
				return err
			}
			if c.method.IsStreamingServer() {
				continue
			}
		}
		if c.verbose {
			printMetadata(c.std.err, "< ", stream.Trailer())
		}
		return unlessEnded(err)
	}
}

// ended returns the error of a call. If the call was cancelled because sending failed, that
// failure is the error.
func (c *caller) ended(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, ctx.Err()) {
		err = cause
	}
	if _, ok := status.FromError(err); ok {
		return c.out.failed(c.hint(err))
	}
	return err
}
