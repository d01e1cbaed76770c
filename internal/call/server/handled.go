package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/metadata"

	"github.com/nearcall/nearcall/internal/call"
	"github.com/nearcall/nearcall/internal/link"
)

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
	c.detailsLocked().encoding = name
	return nil
}

// Profile returns the properties of the call besides metadata. It must not be modified.
func (h *Handled) Profile() *link.Profile { return h.open.Profile }

// Sent returns the metadata that the caller has sent, with that of its credentials and without
// gRPC's own. It can have reserved keys. It must not be modified.
func (h *Handled) Sent() metadata.MD { return h.open.Sent() }

// InProcess reports whether the caller is in this process.
func (h *Handled) InProcess() bool { return h.conn.peer.Local }

// WithMixed returns a context for a streaming handler that a *grpc.Server runs for a service of s.
// A message that is prepared for the handler's stream can be sent on nearcall's streams, too.
func (s *Server) WithMixed(ctx context.Context) context.Context {
	return call.WithMixed(ctx, s.codecFor)
}
