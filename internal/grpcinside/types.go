package grpcinside

import (
	"reflect"
	"slices"
	"strings"
	_ "unsafe" // for go:linkname

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/grpclog"
	"google.golang.org/grpc/serviceconfig"
)

const textField = "rawJSONString"

func init() {
	//lint:ignore SA1019 it is the type that grpc-go has for service configs
	f, ok := reflect.TypeFor[grpc.ServiceConfig]().FieldByName(textField)
	ConfigText.check(ok && f.Type.Kind() == reflect.String)
}

// TextOf returns the JSON of a service config that grpc-go has parsed. It reports false if that is
// not known.
func TextOf(c serviceconfig.Config) (text string, ok bool) {
	//lint:ignore SA1019 it is the type that grpc-go has for service configs
	sc, ok := c.(*grpc.ServiceConfig)
	if !ok || sc == nil || !ConfigText.Found() {
		return "", false
	}
	return reflect.ValueOf(sc).Elem().FieldByName(textField).String(), true
}

// registered holds the names of the compressors registered with package encoding, in the
// order of registration. encoding does not export the list, only lookups by name.
//
//go:linkname registered google.golang.org/grpc/internal/grpcutil.RegisteredCompressorNames
var registered []string

// CompressorNames returns the names of the registered compressors, in the order of registration. They
// must not be modified. They are known once all packages are initialised.
func CompressorNames() []string {
	const gzip = "gzip"
	hasGzip := encoding.GetCompressor(gzip) != nil
	unknown := func(name string) bool { return encoding.GetCompressor(name) == nil }
	if Compressors.Found() && Compressors.check(!slices.ContainsFunc(registered, unknown) && slices.Contains(registered, gzip) == hasGzip) {
		return registered
	}
	if hasGzip {
		return []string{gzip}
	}
	return nil
}

// acceptType is the type of the call option that AcceptCompressors returns, which grpc-go does not
// export. A value of this type holds a slice of names, in the field with the index acceptField.
var acceptType = reflect.TypeOf(experimental.AcceptCompressors(encoding.Identity))

var acceptField = func() int {
	for i := 0; acceptType.Kind() == reflect.Struct && i < acceptType.NumField(); i++ {
		if acceptType.Field(i).Type == reflect.TypeFor[[]string]() {
			return i
		}
	}
	Accepted.check(false)
	return 0
}()

// AcceptedCompressors returns the names in o, as the user has passed them, if o is the option
// AcceptCompressors. It reports false for other options.
func AcceptedCompressors(o grpc.CallOption) (names []string, ok bool) {
	switch {
	case reflect.TypeOf(o) != acceptType:
		return nil, false
	case !Accepted.Found():
		return []string{encoding.Identity}, true
	}
	list := reflect.ValueOf(o).Field(acceptField)
	for i := range list.Len() {
		names = append(names, list.Index(i).String())
	}
	return names, true
}

// IsProtoCodec reports whether c is the codec of google.golang.org/grpc/encoding/proto.
// That package does not export its codec, so it is recognised by its package path.
func IsProtoCodec(c encoding.CodecV2) bool {
	t := reflect.TypeOf(c)
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t.PkgPath() == "google.golang.org/grpc/encoding/proto" && ProtoCodec.Found()
}

// IsConnectionKey reports whether key is the key of the connection. grpc-go's transport stores a call's
// connection in the context, under a key of an unexported type, the only one of its package. Other
// packages of grpc-go look it up: authz refuses calls without one.
func IsConnectionKey(key any) bool {
	t := reflect.TypeOf(key)
	return t != nil && t.Kind() == reflect.Struct && t.Size() == 0 && strings.HasPrefix(t.PkgPath(), "google.golang.org/grpc/internal/transport")
}

// InterceptorsOf returns the interceptors in opts. Options of grpc-go are opaque, and packages such
// as orca export their interceptors only as an option. So InterceptorsOf makes a *grpc.Server with
// opts and reads its fields.
func InterceptorsOf(opts []grpc.ServerOption) (unary []grpc.UnaryServerInterceptor, stream []grpc.StreamServerInterceptor) {
	if len(opts) == 0 {
		return nil, nil
	}
	s := grpc.NewServer(opts...)
	defer s.Stop()
	if i := optionOf[grpc.UnaryServerInterceptor](s, "unaryInt"); i != nil {
		unary = append(unary, i)
	}
	if i := optionOf[grpc.StreamServerInterceptor](s, "streamInt"); i != nil {
		stream = append(stream, i)
	}
	return unary, stream
}

// optionOf returns a field of the options of s, or the zero value if this version of grpc-go has no
// such field.
func optionOf[T any](s *grpc.Server, name string) (value T) {
	if opts := reflect.ValueOf(s).Elem().FieldByName("opts"); opts.Kind() == reflect.Struct && Interceptors.Found() {
		if f := opts.FieldByName(name); f.IsValid() && f.Type() == reflect.TypeFor[T]() {
			return *(*T)(f.Addr().UnsafePointer())
		}
	}
	grpclog.Component("nearcall").Warningf("nearcall.GRPCServerOptions does not know this version of grpc-go: without its %s, interceptors in the options apply only to ordinary gRPC clients", name)
	return value
}
