// Package forward lets a nearcall server pass calls on to a *grpc.Server, for
// programs with services that only that has: of plugins and frameworks whose APIs
// demand the type.
//
//	srv := nearcall.NewServer(forward.To(grpcServer))
//
// # What it does
//
// A call to a service that is not registered with the nearcall server goes to the
// *grpc.Server, through its ServeHTTP and without a network. All kinds of calls work,
// with metadata, deadlines, cancellation and status details.
//
// What the *grpc.Server has applies there: interceptors, stats handlers, limits, an
// UnknownServiceHandler. What the nearcall server has applies before: it sees forwarded
// calls as those of an UnknownServiceHandler, as streams, whose messages are bytes. The
// smaller limit of message sizes counts. GetServiceInfo, and so reflection, has the
// services of both.
//
// # What it costs
//
// Messages are marshalled, copied and unmarshalled, also in process. A call takes four
// goroutines beside the nearcall server's own. Register services with the nearcall server
// where that is possible.
//
// # What is different
//
// In handlers of forwarded calls [peer.FromContext] has the caller's address as text, and
// its AuthInfo only over TLS.
//
// Messages that a client streams are announced to the *grpc.Server before they are handed
// over, so that at most 64 KiB of them wait for a slow handler. Its stats
// handlers see the compression "nearcall-forward" there, and the announcement's size for
// the compressed one. To that end importing this package registers a compressor of that
// name, which gRPC clients of the program then list in grpc-accept-encoding.
//
// A *grpc.Server with the deprecated option RPCCompressor fails forwarded calls.
//
// # Stopping
//
// Stop the nearcall server first: its GracefulStop waits for forwarded calls. Stop and
// GracefulStop of the *grpc.Server end those that still run with Unavailable.
package forward

import (
	"context"
	"net/http"
	"net/url"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/hook"
)

// To returns an option that makes a nearcall server pass the calls to services it does
// not have on to s. Register the services of s before the first call. s need not serve
// anything, and may.
//
// With [nearcall.UnknownServiceHandler] as well, calls to services that s does not have
// either go to that, and else to s.
func To(s *grpc.Server) nearcall.ServerOption {
	if s == nil {
		panic("forward: To needs a *grpc.Server; make one with grpc.NewServer")
	}
	f := &forwarder{to: s}
	return hook.Forward(f.handle, rawCodec{}, s.GetServiceInfo).(nearcall.ServerOption)
}

type forwarder struct{ to http.Handler }

// handle passes on one call. It returns when the *grpc.Server is done with it.
func (f *forwarder) handle(s grpc.ServerStream, clientStreams bool) error {
	ctx, fail := context.WithCancelCause(s.Context())
	defer fail(nil)
	req := newRequest(ctx)
	m := newMessages(clientStreams)
	defer m.drop()
	go m.receive(s, fail)
	req.Body = m
	if clientStreams {
		req.Header["Grpc-Encoding"] = []string{encodingName}
	}
	w := &response{stream: s, header: make(http.Header), fail: fail}
	f.serve(w, req)
	err := w.end()
	if err == errNoStatus || status.Code(err) == codes.Canceled {
		// What has ended the call may look like a cancellation there.
		if over := s.Context().Err(); over != nil {
			return status.FromContextError(over).Err()
		}
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
	}
	if err != errNoStatus {
		return err
	}
	return status.Error(codes.Unavailable, "the *grpc.Server that this call was forwarded to is stopped")
}

// serve calls ServeHTTP. That panics where the status of a handler has details but cannot be
// marshalled, because its message is not UTF-8. It has written the rest of the status by
// then, which counts, as over a network. Other panics are passed on.
func (f *forwarder) serve(w *response, req *http.Request) {
	defer func() {
		if w.status() != nil {
			_ = recover()
		}
	}()
	f.to.ServeHTTP(w, req)
}

// newRequest returns the request that the call of ctx is, without a body. Its deadline
// is that of ctx, to the nanosecond.
func newRequest(ctx context.Context) *http.Request {
	method, _ := grpc.Method(ctx)
	md, _ := metadata.FromIncomingContext(ctx)
	req := &http.Request{
		Method: http.MethodPost,
		URL:    &url.URL{Path: method},
		Proto:  "HTTP/2.0", ProtoMajor: 2,
		Header: make(http.Header, len(md)+1),
	}
	for k, vs := range md {
		switch {
		case k == ":authority":
			req.Host = vs[0]
		case k == "content-type":
			req.Header["Content-Type"] = vs
		case strings.HasPrefix(k, ":"):
		default:
			req.Header[k] = encodeAll(k, vs)
		}
	}
	if p, ok := peer.FromContext(ctx); ok {
		if p.Addr != nil {
			req.RemoteAddr = p.Addr.String()
		}
		if tls, ok := p.AuthInfo.(credentials.TLSInfo); ok {
			req.TLS = &tls.State
		}
		if p.LocalAddr != nil {
			ctx = context.WithValue(ctx, http.LocalAddrContextKey, p.LocalAddr)
		}
	}
	return req.WithContext(ctx)
}

// raw is a message in bytes.
type raw struct{ data []byte }

// rawCodec encodes and decodes *raw.
type rawCodec struct{}

func (rawCodec) Name() string { return "raw" }

func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.(*raw).data)}, nil
}

func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	v.(*raw).data = data.Materialize()
	return nil
}
