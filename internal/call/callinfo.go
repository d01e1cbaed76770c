package call

import (
	"math"
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

	"github.com/nearcall/nearcall/internal/codec"
	"github.com/nearcall/nearcall/internal/link"
)

const (
	unset = math.MinInt // a limit that no option sets

	// noLimit and defaultMaxRecv are grpc-go's defaults, in bytes.
	noLimit        = math.MaxInt32
	defaultMaxRecv = 4 << 20
)

// callInfo is what the options of one call say.
type callInfo struct {
	opts         []grpc.CallOption
	codec        link.Codec
	subtype      string
	maxRecv      int
	maxSend      int
	creds        credentials.PerRPCCredentials
	authority    string
	encoding     string
	accept       []string    // what replies may be compressed with; none for anything
	maxReplay    int         // of what was sent, to be kept for another attempt
	retry        *retryState // nil where the service config says nothing of retries
	waitForReady bool
	unnamed      bool // the codec has no name that goes into a content-type
	reports      bool // an option, or the throttler of retries, wants to be told of the end
}

// apply reads opts. An option that asks for something that cannot be had is
// refused rather than dropped.
func (ci *callInfo) apply(opts []grpc.CallOption, mc *methodConfig, byDefault link.Codec) error {
	ci.opts, ci.maxRecv, ci.maxSend, ci.maxReplay = opts, unset, unset, defaultMaxReplay
	if mc.waitForReady != nil {
		ci.waitForReady = *mc.waitForReady
	}
	if ci.retry = mc.newRetryState(); ci.retry != nil {
		ci.reports = true
	}
	for i, o := range opts {
		if _, usual := o.(grpc.StaticMethodCallOption); usual {
			continue // generated code adds it to each call
		}
		if inner := unwrapped(o); inner != nil {
			ci.opts = slices.Clone(ci.opts) // the caller's is not ours to write
			ci.opts[i], o = inner, inner
		}
		switch o := o.(type) {
		case nil, grpc.EmptyCallOption:
		case grpc.HeaderCallOption, grpc.TrailerCallOption, grpc.PeerCallOption, grpc.OnFinishCallOption:
			ci.reports = true
		case grpc.FailFastCallOption:
			ci.waitForReady = !o.FailFast
		case grpc.MaxRecvMsgSizeCallOption:
			ci.maxRecv = o.MaxRecvMsgSize
		case grpc.MaxSendMsgSizeCallOption:
			ci.maxSend = o.MaxSendMsgSize
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
	ci.maxRecv = limit(mc.maxResponse, ci.maxRecv, defaultMaxRecv)
	ci.maxSend = limit(mc.maxRequest, ci.maxSend, noLimit)
	return ci.chooseCodec(byDefault)
}

// unwrapped returns the option of grpc-go that o points to or embeds, and by
// which it acts; nil when o is one itself, or there is none to be found.
func unwrapped(o grpc.CallOption) grpc.CallOption {
	t := reflect.TypeOf(o)
	if t == nil || t.PkgPath() == grpcPath {
		return nil
	}
	v := reflect.ValueOf(o)
	if v.Kind() == reflect.Pointer && !v.IsNil() {
		v = v.Elem()
		if inner, ok := v.Interface().(grpc.CallOption); ok && v.Type().PkgPath() == grpcPath {
			return inner
		}
	}
	if v.Kind() != reflect.Struct {
		return nil
	}
	for i := range v.NumField() {
		if f := v.Field(i); v.Type().Field(i).Anonymous && f.CanInterface() {
			if inner, ok := f.Interface().(grpc.CallOption); ok {
				if deeper := unwrapped(inner); deeper != nil {
					return deeper
				}
				return inner
			}
		}
	}
	return nil
}

const grpcPath = "google.golang.org/grpc"

// chooseCodec follows grpc-go: a forced codec wins and names the subtype; else
// the subtype names the codec; else protobuf.
func (ci *callInfo) chooseCodec(byDefault link.Codec) error {
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

// namedCodec gives grpc's oldest codec interface the name of its successor.
type namedCodec struct{ grpc.Codec }

func (c namedCodec) Name() string { return c.String() }

// fillOptions reports how a call that reached a session went, to the options that
// asked.
func (ci *callInfo) fillOptions(p *link.Peer, header, trailer metadata.MD) {
	if !ci.reports {
		return
	}
	for _, o := range ci.opts {
		switch o := o.(type) {
		case grpc.HeaderCallOption:
			*o.HeaderAddr = fullHeader(header, ci.subtype)
		case grpc.TrailerCallOption:
			*o.TrailerAddr = trailer.Copy()
		case grpc.PeerCallOption:
			*o.PeerAddr = peer.Peer{Addr: p.Addr, LocalAddr: p.LocalAddr, AuthInfo: p.AuthInfo}
		}
	}
}

// onFinished tells those who asked that the call is over.
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
