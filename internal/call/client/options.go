package client

import (
	"context"
	"reflect"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/call"
	"github.com/nearcall/nearcall/internal/codec"
	"github.com/nearcall/nearcall/internal/grpcinside"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/message"
	"github.com/nearcall/nearcall/internal/wait"
)

// defaultMaxReplay is grpc-go's default for how much of a call is kept for replay, in bytes.
const defaultMaxReplay = 256 << 10

// defaultMaxRecv is grpc-go's default, in bytes.
const defaultMaxRecv = 4 << 20

// callInfo holds the caller's options for a call, and the state that all attempts share.
type callInfo struct {
	ctx    context.Context // with the service config's timeout
	method string
	desc   *grpc.StreamDesc // unaryDesc for Invoke
	md     metadata.MD      // the user's
	given  *message.Message // the request of Invoke if it is encoded; nil otherwise

	opts         []grpc.CallOption
	codec        message.Codec
	subtype      string
	maxRecv      int
	maxSend      int
	creds        credentials.PerRPCCredentials
	authority    string
	encoding     string
	accept       []string    // compressors allowed for replies; empty for all
	maxReplay    int         // limit of the replay buffer, in bytes
	retry        *retryState // nil if the service config does not configure retries
	waitForReady bool
	unnamed      bool // the codec's name must not go into the content-type
	sendsOn      bool // a message that cannot be sent does not end the stream
	reports      bool // options or the retry throttler need the result of the call

	// Of a Balancer's Selection.
	committed func()
	delayed   bool                     // the call has waited for the target to be resolved
	through   grpc.ClientConnInterface // if not nil, makes the whole call
}

// unaryDesc is the description of the calls of Invoke.
var unaryDesc = &grpc.StreamDesc{}

// unary reports whether Invoke makes the call.
func (ci *callInfo) unary() bool { return ci.desc == unaryDesc }

// apply sets ci from opts and mc. It returns an error for an option that cannot be honoured.
func (ci *callInfo) apply(opts []grpc.CallOption, mc *methodConfig, byDefault message.Codec) error {
	var maxRecv, maxSend *int // nil for limits that are not set
	ci.opts, ci.maxReplay = opts, defaultMaxReplay
	if mc.WaitForReady != nil {
		ci.waitForReady = *mc.WaitForReady
	}
	if mc.RetryPolicy != nil || mc.throttler != nil {
		ci.retry, ci.reports = &retryState{policy: mc.RetryPolicy, throttler: mc.throttler}, true
	}
	for i, o := range opts {
		if !isKnown(o) {
			if inner := unwrapped(o); inner != nil {
				ci.opts = slices.Clone(ci.opts) // the slice belongs to the caller
				ci.opts[i], o = inner, inner
			}
		}
		switch o := o.(type) {
		case nil, grpc.EmptyCallOption, grpc.StaticMethodCallOption:
		case RawHeader, RawTrailer, grpc.HeaderCallOption, grpc.TrailerCallOption, grpc.PeerCallOption, grpc.OnFinishCallOption:
			ci.reports = true
		case Verdict:
			o.Outcome.Known, ci.reports = true, true
		case SendsOn:
			ci.sendsOn = true
		case grpc.FailFastCallOption:
			ci.waitForReady = !o.FailFast
		case grpc.MaxRecvMsgSizeCallOption:
			maxRecv = &o.MaxRecvMsgSize
		case grpc.MaxSendMsgSizeCallOption:
			maxSend = &o.MaxSendMsgSize
		case grpc.MaxRetryRPCBufferSizeCallOption:
			ci.maxReplay = o.MaxRetryRPCBufferSize
		case grpc.AuthorityOverrideCallOption:
			ci.authority = o.Authority
		case grpc.PerRPCCredsCallOption:
			ci.creds = o.Creds
		case grpc.CompressorCallOption:
			ci.encoding = o.CompressorType
		case grpc.ContentSubtypeCallOption:
			ci.subtype = o.ContentSubtype
		case grpc.ForceCodecCallOption:
			if o.Codec != nil {
				ci.codec = codec.WrapV1(o.Codec)
			}
		case grpc.ForceCodecV2CallOption:
			if o.CodecV2 != nil {
				ci.codec = codec.WrapV2(o.CodecV2)
			}
		case grpc.CustomCodecCallOption:
			if o.Codec != nil {
				ci.codec, ci.unnamed = codec.WrapV1(namedCodec{o.Codec}), true
			}
		default:
			known, err := ci.acceptCompressors(o)
			if err != nil {
				return err
			}
			if known {
				continue
			}
			return status.Errorf(codes.Internal, "nearcall: the call option %T cannot be honoured on this connection; leave it out; only connections to ordinary gRPC servers take it", o)
		}
	}
	ci.maxRecv = limit((*int)(mc.MaxResponseMessageBytes), maxRecv, defaultMaxRecv)
	ci.maxSend = limit((*int)(mc.MaxRequestMessageBytes), maxSend, call.NoLimit)
	return ci.chooseCodec(byDefault)
}

// RawHeader and RawTrailer are [grpc.Header] and [grpc.Trailer] without a copy: callers must not
// modify the result, and get no keys that gRPC adds. grpc-go treats them as the options that they
// embed.
type (
	RawHeader  struct{ grpc.HeaderCallOption }
	RawTrailer struct{ grpc.TrailerCallOption }
)

// SendsOn is an option for streams. It keeps the stream open if SendMsg fails because the message
// cannot be encoded or is too large; none of it was sent. grpc-go ignores the option.
type SendsOn struct{ grpc.EmptyCallOption }

// A Verdict is an option that reports, when a call fails, which side made the error. grpc-go
// ignores the option, and Outcome stays zero.
type Verdict struct {
	grpc.EmptyCallOption
	Outcome *Outcome
}

// An Outcome says which side made the error of a call.
type Outcome struct {
	Known    bool
	ByCallee bool // otherwise the caller's side, for example because the connection was lost
}

// calleeEnded records that the call's error is the status with which the callee has ended it.
func (ci *callInfo) calleeEnded() {
	if !ci.reports {
		return
	}
	for _, o := range ci.opts {
		if v, ok := o.(Verdict); ok {
			v.Outcome.ByCallee = true
		}
	}
}

// isKnown reports whether o is nil, or an option of grpc-go or of this package.
func isKnown(o grpc.CallOption) bool {
	switch o.(type) {
	case nil, grpc.StaticMethodCallOption, RawHeader, RawTrailer, Verdict, SendsOn: // the second is that of generated code
		return true
	}
	return reflect.TypeOf(o).PkgPath() == grpcPath
}

// unwrapped returns the option of grpc-go that o is, points to or embeds. In grpc-go, that option
// determines what o does. unwrapped returns nil if there is none.
func unwrapped(o grpc.CallOption) grpc.CallOption {
	if isKnown(o) {
		return o
	}
	v := reflect.Indirect(reflect.ValueOf(o))
	if v.Kind() != reflect.Struct {
		return nil
	}
	if v.Type().PkgPath() == grpcPath {
		return v.Interface().(grpc.CallOption)
	}
	for t, f := range v.Fields() {
		if t.Anonymous && f.CanInterface() {
			if inner, ok := f.Interface().(grpc.CallOption); ok {
				return unwrapped(inner)
			}
		}
	}
	return nil
}

const grpcPath = "google.golang.org/grpc"

// chooseCodec sets the codec and the content-subtype as grpc-go does. A forced codec wins and sets
// the subtype. Otherwise the subtype selects the codec. Without either, the codec is byDefault.
func (ci *callInfo) chooseCodec(byDefault message.Codec) error {
	switch {
	case ci.codec != nil:
		if ci.subtype == "" && !ci.unnamed {
			ci.subtype = strings.ToLower(ci.codec.Name())
		}
	case ci.subtype == "":
		ci.codec = byDefault
	default:
		c, ok := codec.Get(ci.subtype)
		if !ok {
			return status.Errorf(codes.Internal, "no codec registered for content-subtype %s", ci.subtype)
		}
		ci.codec = c
	}
	if ci.encoding != "" && ci.encoding != encoding.Identity && encoding.GetCompressor(ci.encoding) == nil {
		return status.Errorf(codes.Internal, "grpc: Compressor is not installed for requested grpc-encoding %q", ci.encoding)
	}
	return nil
}

// namedCodec adapts grpc.Codec, whose String method returns its name, to encoding.Codec.
type namedCodec struct{ grpc.Codec }

func (c namedCodec) Name() string { return c.String() }

// fillOptions sets the header, trailer and peer that the options ask for. p is the peer of the
// last session that the call has reached; if it is nil, fillOptions does nothing.
func (ci *callInfo) fillOptions(p *link.Peer, header, trailer metadata.MD) {
	if !ci.reports || p == nil {
		return
	}
	for _, o := range ci.opts {
		switch o := o.(type) {
		case RawHeader:
			*o.HeaderAddr = header
		case RawTrailer:
			*o.TrailerAddr = trailer
		case grpc.HeaderCallOption:
			*o.HeaderAddr = call.FullHeader(header, ci.subtype)
		case grpc.TrailerCallOption:
			*o.TrailerAddr = trailer.Copy()
		case grpc.PeerCallOption:
			*o.PeerAddr = peer.Peer{Addr: p.Addr, LocalAddr: p.LocalAddr, AuthInfo: p.AuthInfo}
		}
	}
}

// onFinished reports the end of the call to the retry throttler and OnFinish options.
func (ci *callInfo) onFinished(err error) {
	if !ci.reports {
		return
	}
	if ci.retry != nil && err == nil {
		ci.retry.throttler.successfulRPC()
	}
	for _, o := range ci.opts {
		if o, ok := o.(grpc.OnFinishCallOption); ok {
			o.OnFinish(err)
		}
	}
}

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
	name := call.ReplyEncoding(header, ci.encoding)
	if name == "" || name == encoding.Identity || slices.Contains(ci.accept, name) {
		return nil
	}
	return status.Errorf(codes.Internal, "grpc: peer compressed the response with %q which is not allowed by AcceptCompressors", name)
}

var errNilContext = status.Error(codes.Internal, "nearcall: a call needs a context; pass context.Background() where there is no other")

// prepareCall applies the service config and the options, and makes the checks that need no
// session. It reports an error to the call's options. cancel must be called when the call has ended.
func (c *Client) prepareCall(ci *callInfo, opts []grpc.CallOption) (cancel context.CancelFunc, err error) {
	ci.opts, ci.reports = opts, true // apply sets reports; errors before apply must be reported, too
	cancel, ci.committed = func() {}, func() {}
	mc, err := c.selectConfig(ci)
	if err == nil && ci.ctx != nil && ci.through == nil {
		ci.ctx, cancel = mc.withTimeout(ci.ctx)
	}
	if err == nil {
		err = c.checkCall(ci, mc, opts)
	}
	if err != nil {
		ci.committed()
		ci.onFinished(err)
	}
	return cancel, err
}

func (c *Client) checkCall(ci *callInfo, mc *methodConfig, opts []grpc.CallOption) (err error) {
	if ci.ctx == nil {
		return errNilContext
	}
	if ci.md, err = call.Outgoing(ci.ctx); err != nil {
		return err
	}
	ci.reports = false
	if err := ci.apply(opts, mc, c.codec); err != nil {
		ci.reports = true
		return err
	}
	if err := wait.Err(ci.ctx); err != nil {
		return startStatus(err)
	}
	return nil
}

// selectConfig sets the context of a call, and returns the config that applies to it.
func (c *Client) selectConfig(ci *callInfo) (*methodConfig, error) {
	if c.cfg.Balancer == nil || ci.ctx == nil {
		return c.cfg.Service.of(ci.method), nil
	}
	if md, err := call.Outgoing(ci.ctx); err != nil {
		return &noConfig, err
	} else if ci.md = md; wait.Err(ci.ctx) != nil {
		return &noConfig, nil // checkCall returns the error
	}
	s, err := c.cfg.Balancer.Select(ci.ctx, ci.method)
	if err != nil {
		return &noConfig, err
	}
	ci.ctx, ci.delayed, ci.through = s.Context, s.Delayed, s.Through
	if s.Committed != nil {
		ci.committed = s.Committed
	}
	mc := s.Service.of(ci.method)
	if s.Method != nil {
		mc = mc.replacedBy(s.Method)
	}
	return mc, nil
}

// limit returns the maximum size of a message, in bytes: the smaller of config and option, each of
// which may be nil. If both are nil, it returns byDefault.
func limit(config, option *int, byDefault int) int {
	switch {
	case config == nil && option == nil:
		return byDefault
	case config == nil:
		return *option
	case option == nil:
		return *config
	}
	return min(*config, *option)
}
