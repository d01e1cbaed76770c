package call

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	_ "unsafe" // for go:linkname

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/link"
)

// registered are the names of the compressors that package encoding has, in the order
// in which they were registered. The package keeps them to itself: it gives a
// compressor to those who know its name. A test compares them with what grpc-go's
// client advertises.
//
//go:linkname registered google.golang.org/grpc/internal/grpcutil.RegisteredCompressorNames
var registered []string

// acceptKey is the metadata with which a caller says how replies may be compressed.
const acceptKey = "grpc-accept-encoding"

// acceptType is the type of the call option that AcceptCompressors returns, which
// grpc-go does not export. It holds a slice of names, at acceptField.
var acceptType, acceptField = func() (reflect.Type, int) {
	t := reflect.TypeOf(experimental.AcceptCompressors("gzip"))
	for i := 0; t.Kind() == reflect.Struct && i < t.NumField(); i++ {
		if t.Field(i).Type == reflect.TypeFor[[]string]() {
			return t, i
		}
	}
	return nil, 0
}()

// acceptCompressors takes in o, if it is the option AcceptCompressors.
func (ci *callInfo) acceptCompressors(o grpc.CallOption) (ok bool, err error) {
	if acceptType == nil || reflect.TypeOf(o) != acceptType {
		return false, nil
	}
	names := reflect.ValueOf(o).Field(acceptField)
	ci.accept = nil
	for i := range names.Len() {
		name := strings.TrimSpace(names.Index(i).String())
		switch {
		case name == "", name == encoding.Identity, slices.Contains(ci.accept, name):
		case encoding.GetCompressor(name) == nil:
			return true, status.Errorf(codes.InvalidArgument, "grpc: compressor %q is not registered", name)
		default:
			ci.accept = append(ci.accept, name)
		}
	}
	return true, nil
}

// accepts returns what a call advertises, of which byDefault is what it does without
// an option. As in grpc-go a compressor that is not registered, which can only be
// identity, is added where requests name it.
func (ci *callInfo) accepts(byDefault string) string {
	accept := byDefault
	if len(ci.accept) > 0 {
		accept = strings.Join(ci.accept, ",")
	}
	if ci.encoding != "" && !slices.Contains(registered, ci.encoding) {
		accept = strings.TrimPrefix(accept+","+ci.encoding, ",")
	}
	return accept
}

// checkReply returns why a reply whose header is header is not taken: it is compressed
// with what the call's options do not allow. A nil header is none.
func (ci *callInfo) checkReply(header metadata.MD) error {
	if len(ci.accept) == 0 || header == nil {
		return nil
	}
	name := replyEncoding(header, ci.encoding)
	if name == "" || name == encoding.Identity || slices.Contains(ci.accept, name) {
		return nil
	}
	return status.Errorf(codes.Internal, "grpc: peer compressed the response with %q which is not allowed by AcceptCompressors", name)
}

// installed reports whether there is what decompresses requests that are compressed
// with name.
func installed(name string) bool {
	return link.Compressor(name) == "" || encoding.GetCompressor(name) != nil
}

// replyEncoding returns what gRPC's header says that replies are compressed with, of
// a call whose requests are with requests.
func replyEncoding(header metadata.MD, requests string) string {
	if own := header[link.EncodingKey]; len(own) > 0 {
		return own[0]
	}
	return link.Compressor(requests)
}

// HandledBy returns the call whose handler, or interceptor, ctx was given to; nil
// where that is none of nearcall's.
func HandledBy(ctx context.Context) *Handled {
	c, _ := grpc.ServerTransportStreamFromContext(ctx).(*serverCall)
	return (*Handled)(c)
}

// A Handled is a call on the side of its handler.
type Handled serverCall

// ClientSupportedCompressors returns the names of the compressors that the caller has
// advertised, as grpc-go does: an empty one for none at all.
func (h *Handled) ClientSupportedCompressors() []string {
	accept := h.open.Accept
	for _, own := range h.open.Metadata[acceptKey] {
		if own != "" {
			accept = strings.TrimPrefix(accept+","+own, ",")
		}
	}
	names := strings.Split(accept, ",")
	for i := range names {
		names[i] = strings.TrimSpace(names[i])
	}
	return names
}

// SetSendCompressor sets what replies are compressed with.
func (h *Handled) SetSendCompressor(name string) error {
	if name != encoding.Identity {
		if encoding.GetCompressor(name) == nil {
			return fmt.Errorf("unable to set send compressor: compressor not registered %q", name)
		}
		if !slices.Contains(h.ClientSupportedCompressors(), name) {
			return fmt.Errorf("unable to set send compressor: client does not support compressor %q", name)
		}
	}
	c := (*serverCall)(h)
	over := c.Err() != nil
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.headerSent || c.finished || over {
		return errors.New("transport: set send compressor called after headers sent or stream done")
	}
	c.details().encoding = name
	return nil
}
