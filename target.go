package nearcall

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
)

// A parsedTarget is a target, taken apart.
type parsedTarget struct {
	scheme string
	rest   string // the name, what grpc-go takes, or what the socket's address is made of

	// Of sockets, as net.Dial and net.Listen have them.
	network, address string
}

const (
	schemeInproc       = "inproc"
	schemeGRPC         = "grpc"
	schemeTCP          = "tcp"
	schemeUnix         = "unix"
	schemeUnixAbstract = "unix-abstract"
	schemeShm          = "shm"
)

// later are the schemes that belong to nearcall but cannot be dialed yet.
// grpc-go would take them for host names.
var later = map[string]bool{"ws": true, "wss": true, "quic": true}

// parseTarget takes a target apart. Whatever is not nearcall's goes to
// grpc-go.
func parseTarget(target string) (parsedTarget, error) {
	if target == "" {
		return parsedTarget{}, errors.New("the target is empty; write inproc:NAME, unix:PATH, tcp:HOST:PORT, or what grpc.NewClient takes")
	}
	scheme, rest, found := strings.Cut(target, ":")
	t := parsedTarget{scheme: scheme, rest: rest}
	switch {
	case !found:
	case scheme == schemeInproc:
		if rest == "" || strings.HasPrefix(rest, "//") || strings.TrimSpace(rest) != rest {
			return t, fmt.Errorf("malformed name %q; write inproc:NAME, with a name that neither is empty nor starts with // or ends in space", rest)
		}
		return t, nil
	case scheme == schemeTCP:
		return t, t.parseTCP()
	case scheme == schemeUnix:
		return t, t.parseUnix()
	case scheme == schemeUnixAbstract:
		return t, t.parseAbstract()
	case scheme == schemeShm:
		return t, t.parseShm()
	case scheme == schemeGRPC:
		if rest == "" {
			return t, errors.New("nothing follows grpc:; write grpc:TARGET with what grpc.NewClient takes")
		}
		return t, nil
	case later[scheme]:
		return t, fmt.Errorf("%s: is not available in this version; use unix:PATH or tcp:HOST:PORT", scheme)
	}
	return parsedTarget{scheme: schemeGRPC, rest: target}, nil
}

const writeTCP = "write tcp:HOST:PORT, with an IPv6 address in brackets: tcp:[::1]:50051"

func (t *parsedTarget) parseTCP() error {
	host, port, err := net.SplitHostPort(t.rest)
	switch {
	case err != nil:
		return fmt.Errorf("%w; %s", err, writeTCP)
	case strings.ContainsAny(t.rest, "/ "):
		return fmt.Errorf("malformed address %q; %s", t.rest, writeTCP)
	case port == "":
		return fmt.Errorf("the port is missing; %s", writeTCP)
	}
	if n, err := strconv.Atoi(port); err == nil && (n < 0 || n > 65535) {
		return fmt.Errorf("there is no port %s; %s", port, writeTCP)
	}
	if strings.ContainsAny(host, "[]") || strings.Contains(host, ":") && !isIP(host) {
		return fmt.Errorf("%q is not a host; %s", host, writeTCP)
	}
	t.network, t.address = "tcp", t.rest
	return nil
}

func isIP(host string) bool {
	_, err := netip.ParseAddr(host)
	return err == nil
}

func (t *parsedTarget) parseUnix() error {
	path, err := unixPath(t.rest, runtime.GOOS == "windows")
	if err != nil {
		return err
	}
	t.network, t.address = "unix", path
	return checkLength(path)
}

// unixPath returns the path of a target whose scheme unix: rest follows. On
// Windows a path may begin with a drive, also after slashes: unix:///C:/dir/s
// and unix://C:\dir\s, which is what a dialer gets, are unix:C:\dir\s.
func unixPath(rest string, windows bool) (string, error) {
	const write = "write unix:PATH or unix:///PATH"
	path, slashes := strings.CutPrefix(rest, "//")
	if slashes {
		if local := strings.TrimPrefix(path, "/"); windows && hasDrive(local) {
			path = local
		} else if local == path {
			host, _, _ := strings.Cut(path, "/")
			return "", fmt.Errorf("there is no host in a unix target, and %q stands where it would be; %s", host, write)
		}
	}
	switch {
	case path == "" || strings.HasSuffix(path, "/"),
		windows && (strings.HasSuffix(path, `\`) || hasDrive(path) && len(path) == len("C:")):
		return "", fmt.Errorf("the path names no file; %s", write)
	case path[0] == '@':
		return "", fmt.Errorf("write unix-abstract:%s for an abstract name, or unix:./%s for a file", path[1:], path)
	}
	return path, nil
}

// hasDrive reports whether a path begins with a drive, as in C:.
func hasDrive(path string) bool {
	return len(path) > 1 && path[1] == ':' && ('a' <= path[0]|0x20 && path[0]|0x20 <= 'z')
}

func (t *parsedTarget) parseShm() error {
	const write = "write shm:PATH, with the path of the unix socket that it begins at"
	if !sharesMemory {
		return fmt.Errorf("%s has no shared memory that nearcall can use, only Linux has; write unix:PATH", runtime.GOOS)
	}
	switch {
	case t.rest == "" || strings.HasSuffix(t.rest, "/"):
		return fmt.Errorf("the path names no file; %s", write)
	case strings.HasPrefix(t.rest, "//"), t.rest[0] == '@':
		return fmt.Errorf("malformed path %q; %s", t.rest, write)
	}
	t.network, t.address = "unix", t.rest
	return checkLength(t.rest)
}

func (t *parsedTarget) parseAbstract() error {
	const write = "write unix-abstract:NAME"
	if t.rest == "" || strings.HasPrefix(t.rest, "//") {
		return fmt.Errorf("malformed name %q; %s", t.rest, write)
	}
	if runtime.GOOS != "linux" {
		return fmt.Errorf("%s has no abstract unix sockets, only Linux has; write unix:PATH", runtime.GOOS)
	}
	t.network, t.address = "unix", "@"+t.rest
	return checkLength(t.address)
}

// checkLength refuses what the system would call an invalid argument.
func checkLength(address string) error {
	if most := len(syscall.RawSockaddrUnix{}.Path) - 1; len(address) > most {
		return fmt.Errorf("the path has %d bytes, and unix sockets take no more than %d; take a shorter one, or a relative one", len(address), most)
	}
	if strings.Contains(address, "\x00") {
		return errors.New("the path has a zero byte")
	}
	return nil
}

// authority is what calls to the target are addressed to, as in grpc-go.
func (t parsedTarget) authority() string {
	switch t.scheme {
	case schemeGRPC:
		return "" // grpc-go knows
	case schemeInproc:
		return escape(t.rest)
	case schemeTCP:
		return escape(t.address)
	}
	return "localhost"
}

// grpc returns the target by which grpc-go reaches the address of a socket.
func (t parsedTarget) grpc() string {
	switch t.scheme {
	case schemeTCP:
		return schemeGRPC + ":" + t.address
	case schemeUnixAbstract:
		return schemeGRPC + ":" + schemeUnixAbstract + ":" + t.rest
	}
	return schemeGRPC + ":" + schemeUnix + ":" + t.address
}

// escape returns s with all that is not allowed in an authority as %XX, as grpc-go does.
func escape(s string) string {
	var b strings.Builder
	for i := range len(s) {
		c := s[i]
		letter := 'a' <= c|0x20 && c|0x20 <= 'z' || '0' <= c && c <= '9'
		if letter || strings.IndexByte("-_.~!$&'()*+,;=:[]@", c) >= 0 {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

// forDialer is what a function of WithContextDialer gets, as in grpc-go.
func (t parsedTarget) forDialer() string {
	switch {
	case t.network != "unix":
		return t.address
	case filepath.IsAbs(t.address):
		return "unix://" + t.address
	}
	return "unix:" + t.address
}

// host is the host of a tcp target.
func (t parsedTarget) host() string {
	host, _, _ := net.SplitHostPort(t.address)
	return host
}

// staysHere reports whether the target is on this machine whatever a resolver
// says.
func (t parsedTarget) staysHere() bool {
	if t.network != "tcp" {
		return true
	}
	host := t.host()
	ip, err := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || err == nil && ip.Unmap().IsLoopback()
}
