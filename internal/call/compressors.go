package call

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/grpcinside"
	"github.com/nearcall/nearcall/internal/link"
)

// acceptKey is the header in which a client lists the compressors that replies may use.
const acceptKey = "grpc-accept-encoding"

// acceptCompressors applies o if it is the option AcceptCompressors, and reports whether it is.
func (ci *callInfo) acceptCompressors(o grpc.CallOption) (ok bool, err error) {
	names, ok := grpcinside.AcceptedCompressors(o)
	if !ok {
		return false, nil
	}
	ci.accept = nil
	if !grpcinside.Accepted.Found() {
		ci.accept, names = names, nil
	}
	for _, name := range names {
		name = strings.TrimSpace(name)
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

// accepts returns the list of compressors that a call advertises: those of the option
// AcceptCompressors or, without the option, the list byDefault. As in grpc-go, it adds the
// request's compressor if that is not registered, which can only be true of identity.
func (ci *callInfo) accepts(byDefault string) string {
	accept := byDefault
	if len(ci.accept) > 0 {
		accept = strings.Join(ci.accept, ",")
	}
	if ci.encoding != "" && encoding.GetCompressor(ci.encoding) == nil {
		accept = strings.TrimPrefix(accept+","+ci.encoding, ",")
	}
	return accept
}

// checkReply returns an error if the reply's header names a compressor that the call's
// options do not allow. A nil header is valid.
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

// installed reports whether the server can decompress requests compressed with name.
func installed(name string) bool {
	return link.Compressor(name) == "" || encoding.GetCompressor(name) != nil
}

// replyEncoding returns the compressor of a call's replies: header's, or by default the
// requests'.
func replyEncoding(header metadata.MD, requests string) string {
	if own := header[link.EncodingKey]; len(own) > 0 {
		return own[0]
	}
	return link.Compressor(requests)
}

// HandledBy returns the call of a handler's or interceptor's ctx, or nil if ctx does not come
// from a nearcall server.
func HandledBy(ctx context.Context) *Handled {
	c, _ := grpc.ServerTransportStreamFromContext(ctx).(*serverCall)
	return (*Handled)(c)
}

// A Handled is the handler's view of a call.
type Handled serverCall

// SendOn keeps the stream of the call open if its handler sends a message that cannot be encoded
// or is too large. In gRPC that ends the call. The goroutine that sends calls it.
func (h *Handled) SendOn() {
	if r := h.carried; r != nil && r.stream != nil {
		r.stream.sendsOn = true
	}
}

// ClientSupportedCompressors returns the names of the compressors that the client
// advertises. If there are none it returns one empty name, as grpc-go does.
func (h *Handled) ClientSupportedCompressors() []string {
	accept := h.open.Accept
	for _, own := range h.open.Sent()[acceptKey] {
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

// SetSendCompressor sets the compressor of replies. It fails if the compressor is not
// registered, the client does not support it, the header was sent, or the call has ended.
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

// Profile returns the properties of the call besides metadata. It must not be modified.
func (h *Handled) Profile() *link.Profile { return h.open.Profile }

// Sent returns the metadata that the caller has sent, with that of its credentials and without
// gRPC's own. It can have reserved keys. It must not be modified.
func (h *Handled) Sent() metadata.MD { return h.open.Sent() }

// InProcess reports whether the caller is in this process.
func (h *Handled) InProcess() bool { return h.conn.peer.Local }
