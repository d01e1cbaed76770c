package grpcserver

import (
	"reflect"

	"google.golang.org/grpc"
	"google.golang.org/grpc/grpclog"
)

// Interceptors returns the interceptors in opts. Options of grpc-go are opaque, and packages such
// as orca export their interceptors only as an option. So Interceptors makes a *grpc.Server with
// opts and reads its fields.
func Interceptors(opts []grpc.ServerOption) (unary []grpc.UnaryServerInterceptor, stream []grpc.StreamServerInterceptor) {
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
	if opts := reflect.ValueOf(s).Elem().FieldByName("opts"); opts.Kind() == reflect.Struct {
		if f := opts.FieldByName(name); f.IsValid() && f.Type() == reflect.TypeFor[T]() {
			return *(*T)(f.Addr().UnsafePointer())
		}
	}
	grpclog.Component("nearcall").Warningf("nearcall.GRPCServerOptions does not know this version of grpc-go: without its %s, interceptors in the options apply only to ordinary gRPC clients", name)
	return value
}
