// Package forward makes a nearcall server forward calls to a *grpc.Server. It is for
// programs whose services are registered with a *grpc.Server, because a plugin's or
// framework's API requires that type.
//
//	srv := nearcall.NewServer(forward.To(grpcServer))
//
// A library that listens and serves itself takes [NewServer] instead. The rest of this text is
// about [To].
//
// # What it does
//
// A call to a service that is not registered with the nearcall server goes to the
// *grpc.Server, through its ServeHTTP and without a network. All kinds of calls work,
// with metadata, deadlines, cancellation and status details.
//
// The interceptors, stats handlers, limits and UnknownServiceHandler of the *grpc.Server apply to
// forwarded calls. The nearcall server's own apply first. They see a forwarded call as a stream
// whose messages are bytes, like a call to an UnknownServiceHandler. The smaller of the two
// message size limits is effective. GetServiceInfo, and so reflection, includes the services of
// both servers.
//
// # What it costs
//
// Messages are marshalled, copied and unmarshalled, even in process. A call uses four goroutines
// in addition to the nearcall server's. Register services with the nearcall server if you can.
//
// # What is different
//
// In handlers of forwarded calls, the address from [peer.FromContext] has only the text of the
// caller's address, and AuthInfo is set only over TLS, without the SPIFFEID. Package authz needs
// the caller's connection, which a *grpc.Server does not know for such calls. Give authz's
// interceptors to the nearcall server: in the *grpc.Server they refuse all calls.
//
// If the client streams, the *grpc.Server first gets an announcement for each message, and the
// message only when the handler receives it. So at most 64 KiB of messages wait for a slow handler.
// Stats handlers of the *grpc.Server see the compression "nearcall-forward" for these calls, and
// the announcement's size as the compressed size. Importing this package registers a compressor of
// that name. The program's gRPC clients then list it in grpc-accept-encoding.
//
// Ordinary gRPC clients can call the nearcall server's other services only with protobuf or the
// codec of ForceServerCodecV2.
//
// Forwarded calls fail if the *grpc.Server has the deprecated option RPCCompressor.
//
// # Stopping
//
// Stop the nearcall server first: its GracefulStop waits for forwarded calls. Stop and GracefulStop
// of the *grpc.Server end the forwarded calls that still run. Those fail with Unavailable.
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
	"github.com/nearcall/nearcall/internal/options"
)

// To returns an option that makes a nearcall server forward to s the calls to services that the
// nearcall server does not have. Register the services of s before the first call. s may serve
// listeners as well, but need not.
//
// If [nearcall.UnknownServiceHandler] is set, too, it gets the calls to services that s
// does not have either. Otherwise s gets them.
func To(s *grpc.Server) nearcall.ServerOption {
	if s == nil {
		panic("forward: To needs a *grpc.Server; make one with grpc.NewServer")
	}
	f := &forwarder{to: s}
	return options.SetServer(func(o *options.Server) {
		o.ForwardTo = &options.Forward{Handler: f.handle, Codec: rawCodec{}, Services: s.GetServiceInfo}
	})
}

type forwarder struct{ to http.Handler }

// handle forwards one call. It returns when the *grpc.Server has ended the call.
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
	err := w.finish()
	if err == errNoStatus || status.Code(err) == codes.Canceled {
		// The *grpc.Server may report a cancellation, whatever ended the call.
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

// serve calls ServeHTTP, which panics if a handler's status has details but cannot be marshalled
// because its message is not UTF-8. By then ServeHTTP has written the status without details. So
// serve recovers, and the call ends with that status, as over a network. Other panics continue.
func (f *forwarder) serve(w *response, req *http.Request) {
	defer func() {
		if w.status() != nil {
			_ = recover()
		}
	}()
	f.to.ServeHTTP(w, req)
}

// newRequest returns the HTTP request for the call of ctx, without a body. The request's context
// is derived from ctx, and so has exactly the same deadline.
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

// A raw is an encoded message.
type raw struct{ data []byte }

// rawCodec is a codec whose messages are *raw.
type rawCodec struct{}

func (rawCodec) Name() string { return "raw" }

// Encodes implements [options.ForwardCodec].
func (rawCodec) Encodes(v any) bool {
	_, ok := v.(*raw)
	return ok
}

func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.(*raw).data)}, nil
}

func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	v.(*raw).data = data.Materialize()
	return nil
}
