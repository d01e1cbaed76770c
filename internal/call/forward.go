package call

import (
	"strings"
	"sync"

	"google.golang.org/grpc"

	"github.com/nearcall/nearcall/internal/link"
)

// A Forward forwards the calls to services that a server does not have, as bytes.
type Forward struct {
	// Handler forwards a call. It sends and receives the message type that Codec supports.
	// clientStreams is false if the caller must send exactly one message; the server has not
	// checked that.
	Handler func(s grpc.ServerStream, clientStreams bool) error
	Codec   link.Codec

	// Services returns the services to which calls are forwarded. It is called for the first
	// call, and by Server.Info.
	Services func() map[string]grpc.ServiceInfo

	once    sync.Once
	streams map[string]*grpc.StreamDesc // by full method name
	has     map[string]bool             // by service name
}

// learn calls Services once and keeps the result.
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

// forwards reports whether calls to service are forwarded. The server's own services are
// not. Services that the Forward does not have go to UnknownServiceHandler, if it is set.
func (s *Server) forwards(service string) bool {
	f := s.cfg.Forward
	if f == nil || s.services[service] != nil {
		return false
	}
	f.learn()
	return f.has[service] || s.cfg.Unknown == nil
}

// method returns the method for a full name, even for one that is not in Services.
func (f *Forward) method(full string) *method {
	m := &method{name: full, codec: f.Codec}
	if m.stream = f.streams[full]; m.stream == nil {
		m.stream = f.stream(true)
	}
	return m
}

// addTo adds the Forward's services to the map all, except those that the map has already.
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

// serviceOf splits a full method name. ok is false if it is malformed.
func serviceOf(full string) (service, method string, ok bool) {
	name, ok := strings.CutPrefix(full, "/")
	slash := strings.LastIndexByte(name, '/')
	if !ok || slash < 0 {
		return "", "", false
	}
	return name[:slash], name[slash+1:], true
}
