package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/fullstorydev/grpcurl"
	"github.com/jhump/protoreflect/desc" //lint:ignore SA1019 its types are in the API of grpcurl
	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
)

// callFlags are the flags of nearcall call.
type callFlags struct {
	connFlags
	data, format                        string
	verbose, compact, emitAll, tolerant bool
}

func callCommand() *cobra.Command {
	f := new(callFlags)
	c := &cobra.Command{
		Use: "call TARGET METHOD [JSON ...]", Short: "call a method with messages in JSON",
		Long: "METHOD is pkg.Service/Method or pkg.Service.Method. Each JSON argument is a message. Without them and\n" +
			"-d, messages are read from stdin if it is not a terminal, or if the argument is -, or if the method\n" +
			"takes a stream. They are sent as they arrive, and replies are printed as they arrive. Without any\n" +
			"message an empty one is sent, but not to a method that takes a stream.",
		Example: "  nearcall call unix:/tmp/greeter.sock greet.Greeter/Greet '{\"name\": \"world\"}'\n" +
			"  nearcall call -d @request.json unix:/tmp/greeter.sock greet.Greeter/Greet",
		Args: cobra.MinimumNArgs(2), ValidArgsFunction: f.complete((*remote).methods), RunE: f.run,
	}
	f.add(c)
	f.addFiles(c)
	flags := c.Flags()
	flags.StringVarP(&f.data, "data", "d", "", "send these `messages`, one after the other; @FILE is a file that has them, and @, @- or - is stdin")
	flags.StringVar(&f.format, "format", "json", "read and print messages in this `format`: json, or text, which the character 0x1E separates")
	flags.BoolVarP(&f.verbose, "verbose", "v", false, "print the headers that are sent (>) and the headers and trailers that arrive (<) on stderr")
	flags.BoolVar(&f.compact, "compact", false, "print each reply in one line")
	flags.BoolVar(&f.emitAll, "emit-defaults", false, "print fields that have their default values, too")
	flags.BoolVar(&f.tolerant, "allow-unknown-fields", false, "ignore fields of messages that the type does not have")
	return c
}

func (f *callFlags) run(c *cobra.Command, args []string) error {
	if f.format != "json" && f.format != "text" {
		return usageError(fmt.Sprintf("-format %s: write json or text", f.format))
	}
	ctx, p, err := f.open(c.Context(), args[0])
	if err != nil {
		return err
	}
	defer p.close()
	d, err := p.find(args[1])
	if err != nil {
		return err
	}
	method, ok := d.(*desc.MethodDescriptor)
	if !ok {
		return fmt.Errorf("%s is not a method: write it as pkg.Service/Method; 'nearcall describe %s' shows the methods", args[1], args[0])
	}
	if err := p.connect(ctx, f.connectTimeout); err != nil {
		return p.hint(err)
	}
	in, err := f.input(c, method, args[2:])
	if err != nil {
		return err
	}
	h := &caller{callFlags: f, remote: p, c: c, method: method}
	return h.call(ctx, in)
}

// input returns the reader of the messages.
func (f *callFlags) input(c *cobra.Command, method *desc.MethodDescriptor, args []string) (io.Reader, error) {
	file, isFile := strings.CutPrefix(f.data, "@")
	switch given := c.Flags().Changed("data"); {
	case given && len(args) > 0:
		return nil, usageError("-d has the messages, and other messages cannot be beside it")
	case len(args) > 1 && slices.Contains(args, "-"):
		return nil, usageError("- stands for messages from stdin, and other messages cannot be beside it")
	case given && isFile && file != "" && file != "-":
		text, err := os.ReadFile(file)
		return bytes.NewReader(text), err
	case given && !isFile && f.data != "-":
		return strings.NewReader(f.data), nil
	case len(args) > 0 && args[0] != "-":
		return strings.NewReader(strings.Join(args, map[string]string{"json": " ", "text": "\x1e"}[f.format])), nil
	case !given && len(args) == 0 && isTerminal(c.InOrStdin()) && !method.IsClientStreaming():
		return strings.NewReader(""), nil
	case isTerminal(c.InOrStdin()):
		fmt.Fprintln(c.ErrOrStderr(), "nearcall: messages are read from the terminal; Ctrl-D ends them")
	}
	return c.InOrStdin(), nil
}

// interruptible returns a reader of r that ends with ctx. A read of stdin cannot be interrupted, so
// the goroutine that reads can remain until r ends. The command does not wait for it.
func interruptible(ctx context.Context, r io.Reader) io.Reader {
	out, in := io.Pipe()
	context.AfterFunc(ctx, func() { _ = in.CloseWithError(context.Cause(ctx)) })
	go func() {
		_, err := io.Copy(in, r)
		_ = in.CloseWithError(err)
	}()
	return out
}

// A caller makes a call and prints what happens. It is a [grpcurl.InvocationEventHandler].
type caller struct {
	*callFlags
	*remote
	c      *cobra.Command
	method *desc.MethodDescriptor
	print  grpcurl.Formatter
	parser grpcurl.RequestParser
	n      int                     // how many messages were read
	cancel context.CancelCauseFunc // ends the reading of messages
	status *status.Status          // nil if the call has not ended

	invalid, unprintable error // the first message, and the first reply, that is not usable
}

// call makes the call with the messages that in has.
func (h *caller) call(ctx context.Context, in io.Reader) (err error) {
	inCtx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	h.cancel = cancel
	h.parser, h.print, err = grpcurl.RequestParserAndFormatter(grpcurl.Format(h.format), h.source, interruptible(inCtx, in), grpcurl.FormatOptions{
		EmitJSONDefaultFields: h.emitAll, IncludeTextSeparator: !h.verbose, AllowUnknownFields: h.tolerant,
	})
	if err != nil {
		return err
	}
	name := h.method.GetService().GetFullyQualifiedName() + "/" + h.method.GetName()
	err = grpcurl.InvokeRPC(ctx, h.source, h.conn, name, slices.Concat(h.headers, h.rpcHeaders), h, h.next)
	if unusable := cmp.Or(h.invalid, h.unprintable); unusable != nil {
		return unusable
	}
	if h.status != nil && h.status.Code() != codes.OK {
		return h.failed()
	}
	if err != nil && ctx.Err() != nil {
		return status.FromContextError(ctx.Err()).Err()
	}
	return err
}

// next reads a message.
func (h *caller) next(m protoadapt.MessageV1) error {
	err := h.parser.Next(m)
	if h.n++; err == nil || err == io.EOF || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	_, misspelt := errors.AsType[*json.SyntaxError](err)
	switch {
	case h.parser.NumRequests() == h.n: // it is JSON, or text
		h.invalid = fmt.Errorf("message %d: %w; 'nearcall describe %s %s' shows its fields", h.n, err, h.target, h.method.GetInputType().GetFullyQualifiedName())
	case misspelt, errors.Is(err, io.ErrUnexpectedEOF) && h.format == "json":
		h.invalid = fmt.Errorf("message %d is not JSON: %w", h.n, err)
	default:
		h.invalid = fmt.Errorf("message %d: %w", h.n, err)
	}
	return err
}

// failed returns the error for the status of the call, with its details.
func (h *caller) failed() error {
	st := status.Convert(h.hint(h.status.Err()))
	text := st.Message()
	for _, detail := range h.status.Proto().GetDetails() {
		printed, err := h.print(detail)
		if err != nil {
			printed = fmt.Sprintf("a detail of type %s cannot be printed: %v", clean(detail.GetTypeUrl()), err)
		}
		text += "\n" + printed
	}
	return status.Error(st.Code(), text)
}

func (h *caller) OnResolveMethod(m *desc.MethodDescriptor) {
	if h.verbose {
		fmt.Fprintf(h.c.ErrOrStderr(), "> /%s/%s\n", clean(m.GetService().GetFullyQualifiedName()), clean(m.GetName()))
	}
}

func (h *caller) OnSendHeaders(md metadata.MD)    { h.printMetadata("> ", md) }
func (h *caller) OnReceiveHeaders(md metadata.MD) { h.printMetadata("< ", md) }

func (h *caller) OnReceiveResponse(m protoadapt.MessageV1) {
	text, err := h.print(m)
	if err != nil {
		h.unprintable = cmp.Or(h.unprintable, fmt.Errorf("a reply cannot be printed: %w", err))
		return
	}
	if out := new(bytes.Buffer); h.compact && json.Compact(out, []byte(text)) == nil {
		text = out.String()
	}
	fmt.Fprintln(h.c.OutOrStdout(), text)
}

func (h *caller) OnReceiveTrailers(st *status.Status, md metadata.MD) {
	h.status = st
	h.printMetadata("< ", md)
	h.cancel(io.EOF) // or the call would wait for more messages
}

// printMetadata prints metadata in lines that begin with prefix, in the order of the names.
// Metadata from a server can have line breaks, which must not begin another line.
func (h *caller) printMetadata(prefix string, md metadata.MD) {
	if !h.verbose {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(md)) {
		for _, value := range md[name] {
			if strings.HasSuffix(name, "-bin") {
				value = base64.StdEncoding.EncodeToString([]byte(value))
			}
			fmt.Fprintf(h.c.ErrOrStderr(), "%s%s\n", prefix, clean(name+": "+value))
		}
	}
}
