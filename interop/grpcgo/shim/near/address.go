package near

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"sync"

	"github.com/nearcall/nearcall"
)

// Tests listen on localhost:0, read the port from the listener, and dial it. For transports
// without ports Listen makes up a port, and Target finds the listener by this port.
var ports struct {
	mu   sync.Mutex
	last int
	used map[int]bool
}

// A listener has a made-up TCP address.
type listener struct {
	net.Listener
	addr net.Addr
}

func (l *listener) Addr() net.Addr { return l.addr }

// Listen is net.Listen. If the kind is mapped, TCP addresses stand for targets of that kind.
func Listen(network, address string) (net.Listener, error) {
	if !On.Mapped() || !strings.HasPrefix(network, "tcp") {
		return net.Listen(network, address)
	}
	p := take(port(address))
	var inner net.Listener
	var err error
	if On == Unix {
		inner, err = net.Listen("unix", path(p))
	} else {
		inner, err = nearcall.Listen(target(p))
	}
	if err != nil {
		return nil, err
	}
	return &listener{inner, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: p}}, nil
}

// take marks port p as used and returns it. If p is 0, it takes a new port.
func take(p int) int {
	ports.mu.Lock()
	defer ports.mu.Unlock()
	if p == 0 {
		ports.last++
		p = 30000 + ports.last
	}
	if ports.used == nil {
		ports.used = make(map[int]bool)
	}
	ports.used[p] = true
	return p
}

// Target returns the target with which a client of nearcall reaches the listener at hostport,
// with credentials that secure the connection or without.
func Target(hostport string, secure bool) string {
	if On.Mapped() {
		return target(port(hostport))
	}
	if _, _, err := net.SplitHostPort(hostport); err != nil {
		hostport = net.JoinHostPort(hostport, "1") // a custom dialer may ignore the port; otherwise dialling fails
	}
	if strings.HasPrefix(hostport, ":") {
		hostport = "localhost" + hostport
	}
	if On == WebSocket && !secure {
		return "ws://" + hostport + "/"
	}
	return "tcp:" + hostport
}

// Dialled returns the arguments for net.Dial for an address of a test.
func Dialled(network, address string) (string, string) {
	if rest, ok := strings.CutPrefix(address, "unix:"); ok {
		return "unix", strings.TrimPrefix(rest, "//")
	}
	if On != Unix && On != SharedMem {
		return network, address
	}
	ports.mu.Lock()
	defer ports.mu.Unlock()
	if p := port(address); ports.used[p] {
		return "unix", path(p)
	}
	return network, address
}

// port returns the port that address ends with, or 0.
func port(address string) int {
	p, err := strconv.Atoi(address[strings.LastIndexByte(address, ':')+1:])
	if err != nil {
		return 0
	}
	return p
}

// target returns nearcall's target for a made-up port.
func target(port int) string {
	switch {
	case On.InOneProcess():
		return fmt.Sprintf("inproc:127.0.0.1:%d", port)
	case On == SharedMem:
		return "shm:" + path(port)
	}
	return "unix:" + path(port)
}

// path returns the path of the socket for a made-up port.
func path(port int) string { return filepath.Join(directory(), strconv.Itoa(port)) }

var directory = sync.OnceValue(func() string {
	dir, err := os.MkdirTemp("", "n") // which is removed with the test
	if err != nil {
		panic(err)
	}
	return dir
})

// Unwrap returns the listener for a server of nearcall to serve. Tests wrap listeners that
// Listen returned. A wrapper around a socket is served as it is.
func Unwrap(lis net.Listener) net.Listener {
	if l, ok := lis.(*listener); ok {
		return l.Listener
	}
	if On == Unix || !On.Mapped() {
		return lis
	}
	if l := field(lis); l != nil {
		return Unwrap(l)
	}
	return lis
}

// field returns the listener in an exported field of lis, or nil if there is none.
func field(lis net.Listener) net.Listener {
	v := reflect.ValueOf(lis)
	for v.Kind() == reflect.Pointer || v.Kind() == reflect.Interface {
		v = v.Elem()
	}
	if v.Kind() != reflect.Struct {
		return nil
	}
	for _, f := range v.Fields() {
		if f.CanInterface() {
			if l, ok := f.Interface().(net.Listener); ok {
				return l
			}
		}
	}
	return nil
}
