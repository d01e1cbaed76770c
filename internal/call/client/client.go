// Package client implements the caller's side of gRPC's calls, independently of the transport:
// call options, service config, credentials, interceptors, attempts and retries.
package client

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/nearcall/nearcall/internal/call"
	"github.com/nearcall/nearcall/internal/grpcinside"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/message"
	"github.com/nearcall/nearcall/internal/options"
)

// Sessions supplies sessions for calls.
type Sessions interface {
	// Pick returns a session that accepts calls. The session may stop doing so at any time. If
	// there is none, it waits until there is one or ctx ends. Unless waitForReady is set, it
	// fails as soon as an attempt to connect has failed. Its errors are status errors.
	Pick(ctx context.Context, waitForReady bool) (link.Session, error)
}

// Config is what a Client needs besides its options.
type Config struct {
	Sessions  Sessions
	Balancer  Balancer       // if not nil, replaces Sessions and Service
	Service   *ServiceConfig // may be nil
	Authority string
	UserAgent string

	// GRPC returns the connection to pass to interceptors. It is called only if
	// there are interceptors.
	GRPC func() *grpc.ClientConn
}

// A Client makes calls.
type Client struct {
	opts   *options.Client
	cfg    Config
	unary  grpc.UnaryClientInterceptor
	stream grpc.StreamClientInterceptor
	stats  stats.Handler
	codec  message.Codec // the default

	profile, shared *link.Profile // of calls without options; shared is for peers that share messages

	closing context.Context // ends with Refuse or Close, whose reason is its cause
	close   context.CancelCauseFunc

	mu      sync.Mutex
	streams map[aborter]struct{} // the open ones
}

// Refuse makes the client refuse new calls with reason, and ends the calls that wait for a retry.
// Other calls end with their sessions.
func (c *Client) Refuse(reason error) { c.close(reason) }

// Close ends all streams for reason, and all calls that wait for a retry. It also ends streams
// whose end has arrived, if the user has not received the end. Other unary calls end with their
// sessions.
func (c *Client) Close(reason error) {
	c.Refuse(reason)
	c.mu.Lock()
	open := slices.Collect(maps.Keys(c.streams))
	c.mu.Unlock()
	for _, s := range open {
		s.abortCall(reason)
	}
}

// An aborter is an open stream.
type aborter interface {
	// abortCall ends the stream's call for reason.
	abortCall(reason error)
}

// add adds s to the open streams. It fails if the client was closed.
func (c *Client) add(s aborter) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing.Err() != nil {
		return context.Cause(c.closing)
	}
	c.streams[s] = struct{}{}
	return nil
}

// remove removes s from the open streams, if add has added it.
func (c *Client) remove(s aborter) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.streams, s)
}

// New returns a client.
func New(o *options.Client, cfg Config) *Client {
	// The profiles are allocated separately: a call that a user keeps refers to a profile, and
	// must not keep the client alive.
	profile := &link.Profile{Authority: cfg.Authority, UserAgent: cfg.UserAgent, Accept: strings.Join(grpcinside.CompressorNames(), ",")}
	profile.Check()
	shared := new(link.Profile)
	*shared = *profile
	shared.Shared = true
	closing, cancel := context.WithCancelCause(context.Background())
	return &Client{
		opts:    o,
		cfg:     cfg,
		unary:   call.Chain(o.ClientUnaryChain, call.JoinUnaryClient),
		stream:  call.Chain(o.ClientStreamChain, call.JoinStreamClient),
		stats:   call.JoinStats(o.ClientStats),
		codec:   call.DefaultCodec(),
		profile: profile,
		shared:  shared,
		closing: closing,
		close:   cancel,
		streams: make(map[aborter]struct{}),
	}
}

// BeginSession reports a session, and later its end, to the client's stats handler.
func (c *Client) BeginSession(s link.Session) {
	h := c.stats
	if h == nil {
		return
	}
	p := s.Peer()
	ctx := h.TagConn(context.Background(), &stats.ConnTagInfo{RemoteAddr: p.Addr, LocalAddr: p.LocalAddr})
	h.HandleConn(ctx, &stats.ConnBegin{Client: true})
	go func() {
		<-s.Ended()
		h.HandleConn(ctx, &stats.ConnEnd{Client: true})
	}()
}

func combine(a, b []grpc.CallOption) []grpc.CallOption {
	if len(a) == 0 {
		return b
	}
	if len(b) == 0 {
		return a
	}
	return append(append(make([]grpc.CallOption, 0, len(a)+len(b)), a...), b...)
}

// A Balancer supplies a session for each attempt of a call, for targets with several endpoints.
type Balancer interface {
	// Select waits until the target was resolved for the first time, and returns the settings of
	// a call of method. Its errors are status errors.
	Select(ctx context.Context, method string) (Selection, error)

	// Pick is like Pick of [Sessions]. ctx is Select's, or derived from it.
	Pick(ctx context.Context, method string, waitForReady bool) (Pick, error)
}

// A Selection holds the settings of one call.
type Selection struct {
	Context context.Context // of the call
	Service *ServiceConfig  // the target's; may be nil
	//lint:ignore SA1019 it is what a config selector of xDS chooses
	Method    *grpc.MethodConfig       // replaces what Service has for the method; may be nil
	Committed func()                   // called when no more attempts are made, and perhaps again later; may be nil
	Delayed   bool                     // the call has waited for the target to be resolved
	Through   grpc.ClientConnInterface // if not nil, makes the whole call
}

// A Pick is the session for an attempt, with the metadata and the callback of the picker.
type Pick struct {
	Session   link.Session
	Authority string                  // replaces that of the target; "" for none
	Metadata  metadata.MD             // sent as well; may be nil
	Done      func(balancer.DoneInfo) // called once when the attempt has ended; may be nil
	Waited    bool                    // the first picker had no session
}

const loadKey = "endpoint-load-metrics-bin"

// loadType returns the type of load reports, or nil if the program does not contain it: then no
// policy of it uses load reports.
var loadType = sync.OnceValue(func() protoreflect.MessageType {
	t, _ := protoregistry.GlobalTypes.FindMessageByName("xds.data.orca.v3.OrcaLoadReport")
	return t
})

// loadOf returns the load report, an *orca_v3.OrcaLoadReport, in a trailer. It is a nil pointer if
// there is none, as in grpc-go.
func loadOf(trailer metadata.MD) any {
	t := loadType()
	if t == nil {
		return nil
	}
	v := trailer[loadKey]
	if len(v) != 1 {
		return t.Zero().Interface()
	}
	m := t.New().Interface()
	if proto.Unmarshal([]byte(v[0]), m) != nil {
		return t.Zero().Interface()
	}
	return m
}
