package main

import (
	"cmp"
	"context"
	"errors"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/fullstorydev/grpcurl"
	"github.com/jhump/protoreflect/desc" //lint:ignore SA1019 its types are in the API of grpcurl
	"github.com/jhump/protoreflect/grpcreflect"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/nearcall/nearcall/internal/targets"
)

// describe sets the source of the services: the files of the flags, or else the server's
// reflection. stop ends the calls of the reflection.
func (p *remote) describe(ctx context.Context, f *connFlags) (stop func(), err error) {
	switch {
	case len(f.protos) > 0:
		if len(f.importPaths) == 0 {
			f.importPaths = []string{"."}
			for _, file := range f.protos {
				f.importPaths = append(f.importPaths, filepath.Dir(file))
			}
		}
		p.source, err = grpcurl.DescriptorSourceFromProtoFiles(f.importPaths, f.protos...)
		return func() {}, err
	case len(f.sets) > 0:
		p.source, err = grpcurl.DescriptorSourceFromProtoSets(f.sets...)
		return func() {}, err
	}
	ctx, cancel := context.WithCancel(metadata.NewOutgoingContext(ctx, grpcurl.MetadataFromHeaders(append(f.headers, f.reflectHeaders...))))
	// The limit of -max-msg-sz is for the replies to the user's calls.
	p.asked = &bounded{ClientConnInterface: p.conn, remote: p, timeout: f.connectTimeout, limit: max(f.maxSize, 4<<20), left: maxAnswers}
	client := grpcreflect.NewClientAuto(ctx, p.asked)
	client.AllowMissingFileDescriptors()
	p.source = grpcurl.DescriptorSourceFromServer(ctx, client)
	return func() {
		client.Reset()
		cancel()
	}, nil
}

// maxAnswers is how many bytes a server's answers may have in total, where each answer counts for
// answerBytes besides its own. The client bounds the depth of imports, but not their number. Tests
// set it lower.
var maxAnswers = 64 << 20

const answerBytes = 4 << 10

// A bounded connection ends reflection when the server has answered too much. Its calls do not
// run concurrently.
type bounded struct {
	grpc.ClientConnInterface
	remote      *remote
	timeout     seconds
	limit, left int
	err         error // of the last answer
}

func (b *bounded) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	if b.err = b.remote.connect(ctx, b.timeout); b.err != nil {
		return nil, b.err
	}
	ctx, cancel := context.WithCancel(ctx)
	stream, err := b.ClientConnInterface.NewStream(ctx, desc, method, append(opts, grpc.MaxCallRecvMsgSize(b.limit))...)
	if b.err = err; err != nil {
		cancel()
		return nil, err
	}
	return boundedStream{stream, b, cancel}, nil
}

type boundedStream struct {
	grpc.ClientStream
	conn   *bounded
	cancel context.CancelFunc
}

// CloseSend ends the sending, and waits until the server has ended the call, for a second. To cancel
// it would be an error in the server's statistics. The reflection client would wait for ever.
func (s boundedStream) CloseSend() error {
	defer s.cancel()
	defer time.AfterFunc(time.Second, s.cancel).Stop()
	err := s.ClientStream.CloseSend()
	for s.ClientStream.RecvMsg(new(emptypb.Empty)) == nil {
	}
	return err
}

func (s boundedStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if answer, ok := m.(proto.Message); ok {
		s.conn.left -= answerBytes + proto.Size(answer)
	}
	if err == nil && s.conn.left < 0 {
		err = status.Error(codes.Internal, "the server's reflection is not usable: it describes too much")
	}
	s.conn.err = err
	return err
}

// explain adds advice to the error of a source. nearcall's own errors need no
// explanation.
func (p *remote) explain(err error) error {
	if err == nil || p.asked == nil {
		return err
	}
	if st := status.Convert(p.asked.err); errors.Is(err, grpcurl.ErrReflectionNotSupported) && st.Code() == codes.Unimplemented {
		if strings.Contains(st.Message(), "nearcall") {
			return p.hint(p.asked.err)
		}
		return status.Errorf(codes.Unimplemented, "the server has no reflection (%s); its program can add it with "+
			"reflection.Register(srv), of package google.golang.org/grpc/reflection, and -proto and -protoset do without", st.Message())
	}
	if _, ok := status.FromError(err); !ok && !isMissing(err) {
		return status.Errorf(codes.Internal, "the server's reflection is not usable: %v", err)
	}
	return p.hint(err)
}

// isMissing reports whether an error of a source says that there is no such symbol.
func isMissing(err error) bool {
	return grpcreflect.IsElementNotFoundError(err) || strings.HasPrefix(err.Error(), "Symbol not found: ")
}

// services returns the names of the services, in order.
func (p *remote) services() ([]string, error) {
	names, err := grpcurl.ListServices(p.source)
	return slices.Compact(names), p.explain(err)
}

// symbols returns the names of the services, their methods, and the methods' messages. It leaves out
// what the server does not describe.
func (p *remote) symbols() (names []string, err error) {
	services, err := p.services()
	for _, name := range services {
		names = append(names, name)
		d, _ := p.source.FindSymbol(name)
		if s, ok := d.(*desc.ServiceDescriptor); ok {
			for _, m := range s.GetMethods() {
				names = append(names, name+"/"+m.GetName(), m.GetInputType().GetFullyQualifiedName(), m.GetOutputType().GetFullyQualifiedName())
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names), err
}

// methods returns the names of all methods as call takes them.
func (p *remote) methods() ([]string, error) {
	names, err := p.symbols()
	return slices.DeleteFunc(names, func(name string) bool { return !strings.Contains(name, "/") }), err
}

// find returns the descriptor with a name. Its error suggests others.
func (p *remote) find(name string) (desc.Descriptor, error) {
	name = strings.ReplaceAll(strings.TrimLeft(name, "/."), "/", ".")
	d, err := p.source.FindSymbol(name)
	if err == nil || !isMissing(err) {
		return d, p.explain(err)
	}
	if cut := strings.LastIndex(name, "."); cut > 0 { // some servers know methods by their services only
		d, _ := p.source.FindSymbol(name[:cut])
		if s, ok := d.(*desc.ServiceDescriptor); ok && s.FindMethodByName(name[cut+1:]) != nil {
			return s.FindMethodByName(name[cut+1:]), nil
		}
	}
	names, listErr := p.symbols()
	if listErr != nil {
		return nil, listErr
	}
	return nil, errors.New(also(strings.ReplaceAll(err.Error(), "\n", " ")+didYouMean(name, names), "'nearcall list' and 'nearcall describe' show what there is"))
}

// didYouMean returns a question that suggests up to three names for the misspelt name want. It
// begins with a semicolon. It is empty if no name is similar. A different package counts as one
// letter.
func didYouMean(want string, names []string) string {
	slips := func(name string) int {
		a, b := strings.ReplaceAll(strings.ToLower(want), "/", "."), strings.ReplaceAll(strings.ToLower(name), "/", ".")
		return min(targets.EditDistance(a, b), targets.EditDistance(lastPart(a), lastPart(b))+min(1, len(want)-len(lastPart(want))))
	}
	names = slices.DeleteFunc(slices.Clone(names), func(name string) bool { return slips(name) > max(len(lastPart(want))/3, 1) })
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(slips(a), slips(b)) })
	if len(names) == 0 {
		return ""
	}
	return "; did you mean " + clean(strings.Join(names[:min(len(names), 3)], " or ")) + "?"
}

// lastPart returns the name of a symbol without its package.
func lastPart(name string) string { return name[strings.LastIndexAny(name, "./")+1:] }

// completeTime is how long a server can take to tell what it has. Tests give it more.
var completeTime = 2 * time.Second

// word matches the names that every shell takes for one word, and nearcall for no flag. A hostile
// server chooses its names.
var word = regexp.MustCompile(`^[A-Za-z0-9_./]+$`)

// complete returns the completion of a command that takes a target and one of the names that the
// function names returns; nil for none.
func (f *connFlags) complete(names func(*remote) ([]string, error)) cobra.CompletionFunc {
	return func(c *cobra.Command, args []string, begun string) (all []cobra.Completion, _ cobra.ShellCompDirective) {
		switch {
		case len(args) == 0 && !strings.Contains(begun, ":"):
			return []string{"unix:", "unix-abstract:", "shm:", "tcp:", "ws://", "wss://", "quic:", "dns:///", "grpc:", "grpc:unix:", "localhost:"},
				cobra.ShellCompDirectiveNoSpace | cobra.ShellCompDirectiveNoFileComp
		case len(args) == 0: // the shell completes a path
			return nil, cobra.ShellCompDirectiveDefault
		case len(args) > 1 || names == nil:
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		f.maxTime = seconds(completeTime)
		if _, p, err := f.open(c.Context(), args[0]); err == nil {
			defer p.close()
			all, _ = names(p)
		}
		return slices.DeleteFunc(all, func(name string) bool { return !word.MatchString(name) || !strings.HasPrefix(name, begun) }),
			cobra.ShellCompDirectiveNoFileComp
	}
}
