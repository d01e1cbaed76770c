package server

import (
	"strings"
	"sync"

	"google.golang.org/grpc"

	"github.com/nearcall/nearcall/internal/codec"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/options"
)

// A forward forwards the calls to services that a server does not have, as bytes.
type forward struct {
	*options.Forward
	codec link.Codec

	once    sync.Once
	streams map[string]*grpc.StreamDesc // by full method name
	has     map[string]bool             // by service name
}

func newForward(o *options.Server) *forward {
	if o.ForwardTo == nil {
		return nil
	}
	return &forward{Forward: o.ForwardTo, codec: codec.WrapV2(o.ForwardTo.Codec)}
}

// learn calls Services once and keeps the result.
func (f *forward) learn() {
	f.once.Do(func() {
		f.streams, f.has = make(map[string]*grpc.StreamDesc), make(map[string]bool)
		for service, info := range f.Services() {
			f.has[service] = true
			for _, m := range info.Methods {
				f.streams["/"+service+"/"+m.Name] = f.stream(m.IsClientStream)
			}
		}
	})
}

func (f *forward) stream(clientStreams bool) *grpc.StreamDesc {
	return &grpc.StreamDesc{
		StreamName: "forwarded", ClientStreams: true, ServerStreams: true,
		Handler: func(_ any, s grpc.ServerStream) error { return f.Handler(s, clientStreams) },
	}
}

// forwards reports whether calls to service are forwarded. The server's own services are
// not. Services that the forward does not have go to UnknownServiceHandler, if it is set.
func (s *Server) forwards(service string) bool {
	f := s.forward
	if f == nil || s.services[service] != nil {
		return false
	}
	f.learn()
	return f.has[service] || s.opts.UnknownServices == nil
}

// method returns the method for a full name, even for one that is not in Services.
func (f *forward) method(full string) *method {
	m := &method{name: full, codec: f.codec}
	if m.stream = f.streams[full]; m.stream == nil {
		m.stream = f.stream(true)
	}
	return m
}

// addTo adds the forward's services to the map all, except those that the map has already.
func (f *forward) addTo(all map[string]grpc.ServiceInfo) {
	if f == nil {
		return
	}
	for name, info := range f.Services() {
		if _, ok := all[name]; !ok {
			all[name] = info
		}
	}
}

// serviceOf splits a full method name. ok is false if it is malformed.
func serviceOf(full string) (service, method string, ok bool) {
	name, ok := strings.CutPrefix(full, "/")
	slash := strings.LastIndexByte(name, '/')
	if !ok || slash < 0 {
		return "", "", false
	}
	return name[:slash], name[slash+1:], true
}
