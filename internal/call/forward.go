package call

import (
	"strings"
	"sync"

	"google.golang.org/grpc"

	"github.com/nearcall/nearcall/internal/link"
)

// A Forward takes the calls to services that a server does not have, and passes them on
// as bytes.
type Forward struct {
	// Handler takes a call. Its messages are whatever Codec encodes and decodes.
	// clientStreams is false where the caller is to send exactly one, to which nobody has
	// held it.
	Handler func(s grpc.ServerStream, clientStreams bool) error
	Codec   link.Codec

	// Services returns the services that calls are passed on to. It is called for the
	// first call, and for reflection.
	Services func() map[string]grpc.ServiceInfo

	once    sync.Once
	streams map[string]*grpc.StreamDesc // of each method, by full name
	has     map[string]bool             // the services, by name
}

// learn asks for the services once.
func (f *Forward) learn() {
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

func (f *Forward) stream(clientStreams bool) *grpc.StreamDesc {
	return &grpc.StreamDesc{
		StreamName: "forwarded", ClientStreams: true, ServerStreams: true,
		Handler: func(_ any, s grpc.ServerStream) error { return f.Handler(s, clientStreams) },
	}
}

// forwards reports whether calls to a service, of which the server has no method of that
// name, are passed on: those that UnknownServiceHandler does not take.
func (s *Server) forwards(service string) bool {
	f := s.cfg.Forward
	if f == nil || s.services[service] != nil {
		return false
	}
	f.learn()
	return f.has[service] || s.cfg.Unknown == nil
}

// method returns the method of that name, which may be one that nobody knows.
func (f *Forward) method(full string) *method {
	m := &method{name: full, codec: f.Codec}
	if m.stream = f.streams[full]; m.stream == nil {
		m.stream = f.stream(true)
	}
	return m
}

// addTo adds the services that all does not have.
func (f *Forward) addTo(all map[string]grpc.ServiceInfo) {
	if f == nil {
		return
	}
	for name, info := range f.Services() {
		if _, ok := all[name]; !ok {
			all[name] = info
		}
	}
}

// serviceOf cuts a full method name in two; ok is false where it is malformed.
func serviceOf(full string) (service, method string, ok bool) {
	name, ok := strings.CutPrefix(full, "/")
	slash := strings.LastIndexByte(name, '/')
	if !ok || slash < 0 {
		return "", "", false
	}
	return name[:slash], name[slash+1:], true
}
