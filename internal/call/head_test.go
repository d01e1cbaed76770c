package call

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// TestNoHandlerSeesControlCharacters in any string of a call's header: the call fails, and
// releases its place in the server's quota.
func TestNoHandlerSeesControlCharacters(t *testing.T) {
	for want, c := range map[string]struct {
		method string
		client func(*ClientConfig)
		opts   []grpc.CallOption
	}{
		"the method has control characters":          {method: "\n"},
		"the authority has control characters":       {client: func(c *ClientConfig) { c.Authority = "a\x00" }},
		"the user agent has control characters":      {client: func(c *ClientConfig) { c.UserAgent = "a\r\nb" }},
		"the content subtype has control characters": {opts: []grpc.CallOption{grpc.ForceCodec(tagged{"a\x7f"})}},
	} {
		t.Run(want, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var ran atomic.Int32
				b := start(t, handlers{
					unary:  func(_ context.Context, m *message) (*message, error) { ran.Add(1); return m, nil },
					stream: func(grpc.ServerStream) error { ran.Add(1); return nil },
				}, func(c *ServerConfig) {
					c.MaxStreams = 1
					c.Unknown = func(any, grpc.ServerStream) error { ran.Add(1); return nil }
				}, c.client)
				check := func(call string, err error) {
					if st := status.Convert(err); st.Code() != codes.Internal || st.Message() != want {
						t.Errorf("%s: %v", call, err)
					}
				}
				for range 2 { // the second call needs the place of the first
					check("unary", b.Invoke(t.Context(), unaryMethod+c.method, wrapperspb.Bytes(nil), new(message), c.opts...))
					s, err := b.NewStream(t.Context(), streamDesc, streamMethod+c.method, c.opts...)
					if err != nil {
						t.Fatal(err)
					}
					check("stream", s.RecvMsg(new(message)))
				}
				if n := ran.Load(); n > 0 {
					t.Errorf("%d handlers ran", n)
				}
			})
		})
	}
}
