// Package targets has the targets of nearcall.NewClient and nearcall.Listen: it parses them, dials
// them, and listens on them.
package targets

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"github.com/nearcall/nearcall/internal/socketfile"
)

// A Target is a target and its parts.
type Target struct {
	Scheme  *scheme
	text    string // the whole target, as the user passed it
	Insists bool   // it names grpc-go
	Rest    string // the part after the scheme and its colon; what grpc-go takes, if IsGRPC

	// For socket targets: the arguments for net.Dial and net.Listen.
	network, address string

	url *url.URL // of ws: and wss: targets
}

func (t *Target) parseInproc() error {
	if t.Rest == "" || strings.HasPrefix(t.Rest, "//") || strings.TrimSpace(t.Rest) != t.Rest {
		return fmt.Errorf("malformed name %q; write inproc:NAME, where NAME neither starts with // nor starts or ends with a space", t.Rest)
	}
	return nil
}

// writeAddress says how to write a target that is HOST:PORT.
func (t *Target) writeAddress() string {
	return fmt.Sprintf("write %[1]s:HOST:PORT, with an IPv6 address in brackets: %[1]s:[::1]:50051", t.Scheme.name)
}

func (t *Target) parseTCP() error { return t.parseAddress("tcp") }

// parseAddress parses a target that is HOST:PORT, in a network.
func (t *Target) parseAddress(network string) error {
	write := t.writeAddress()
	host, port, err := net.SplitHostPort(t.Rest)
	switch {
	case err != nil:
		return fmt.Errorf("%w; %s", err, write)
	case strings.ContainsAny(t.Rest, "/ "):
		return fmt.Errorf("malformed address %q; %s", t.Rest, write)
	case port == "":
		return fmt.Errorf("the port is missing; %s", write)
	}
	if n, err := strconv.Atoi(port); err == nil && (n < 0 || n > 65535) {
		return fmt.Errorf("there is no port %s; %s", port, write)
	}
	if _, err := netip.ParseAddr(host); err != nil && strings.ContainsAny(host, "[]:") {
		return fmt.Errorf("%q is not a host; %s", host, write)
	}
	t.network, t.address = network, t.Rest
	return nil
}

func (t *Target) parseUnix() error {
	path, err := socketPath(t.Rest, runtime.GOOS == "windows")
	switch {
	case err != nil:
		return fmt.Errorf("%w; write unix:PATH or unix:///PATH", err)
	case path[0] == '@':
		return fmt.Errorf("@ is not for files; write unix-abstract:%s for an abstract name, or unix:./%s for a file", path[1:], path)
	}
	t.network, t.address = "unix", path
	return checkLength(path)
}

// socketPath returns the path of a socket from rest, the part of the target after the scheme. On
// Windows a path can begin with a drive, even after slashes. So unix:///C:/dir/s and
// unix://C:\dir\s (the form that dialers get) mean the same as unix:C:\dir\s.
func socketPath(rest string, windows bool) (string, error) {
	path, slashes := strings.CutPrefix(rest, "//")
	if slashes {
		if local := strings.TrimPrefix(path, "/"); windows && hasDrive(local) {
			path = local
		} else if local == path {
			host, _, _ := strings.Cut(path, "/")
			return "", fmt.Errorf("a socket file has no host, and %q stands where it would be", host)
		}
	}
	if path == "" || strings.HasSuffix(path, "/") ||
		windows && (strings.HasSuffix(path, `\`) || hasDrive(path) && len(path) == len("C:")) {
		return "", errors.New("the path names no file")
	}
	return path, nil
}

// hasDrive reports whether path begins with a drive, such as C:.
func hasDrive(path string) bool {
	return len(path) > 1 && path[1] == ':' && ('a' <= path[0]|0x20 && path[0]|0x20 <= 'z')
}

func (t *Target) parseShm() error {
	if !sharesMemory {
		return fmt.Errorf("%s has no shared memory that nearcall can use, only Linux has; write unix:PATH", runtime.GOOS)
	}
	path, err := socketPath(t.Rest, false)
	if err == nil && path[0] == '@' {
		err = fmt.Errorf("shared memory needs a socket file, and %q would be an abstract name", path)
	}
	if err != nil {
		return fmt.Errorf("%w; write shm:PATH or shm:///PATH, with the path of the unix socket that it begins at", err)
	}
	t.network, t.address = "unix", path
	return checkLength(path)
}

func (t *Target) parseAbstract() error {
	const write = "write unix-abstract:NAME"
	if t.Rest == "" || strings.HasPrefix(t.Rest, "//") {
		return fmt.Errorf("malformed name %q; %s", t.Rest, write)
	}
	if runtime.GOOS != "linux" {
		return fmt.Errorf("%s has no abstract unix sockets, only Linux has; write unix:PATH", runtime.GOOS)
	}
	t.network, t.address = "unix", "@"+t.Rest
	return checkLength(t.address)
}

// checkLength returns an error for addresses that the system would reject as an "invalid argument".
func checkLength(address string) error {
	if maxPath := len(syscall.RawSockaddrUnix{}.Path) - 1; len(address) > maxPath {
		return fmt.Errorf("the path has %d bytes, and unix sockets take no more than %d; use a shorter or a relative one", len(address), maxPath)
	}
	if strings.Contains(address, "\x00") {
		return errors.New("the path contains a zero byte")
	}
	return nil
}

// fixed returns the address of a socket target for net.Dial, independent of later changes of the
// working directory. A relative path stays relative if the absolute one is too long for a socket.
func (t *Target) fixed() string {
	if t.network != "unix" || t.address[0] == '@' {
		return t.address
	}
	if path, err := socketfile.Abs(t.address); err == nil && checkLength(path) == nil {
		return path
	}
	return t.address
}

// name returns the authority of targets that name their server.
func (t *Target) name() string { return Escape(t.Rest) }

// localhost returns the authority of targets that name a unix socket, as in grpc-go.
func localhost(*Target) string { return "localhost" }

// forGRPC returns the target with which grpc-go connects to the same socket.
func (t *Target) forGRPC() string {
	switch {
	case t.network != "unix":
		return "grpc:" + t.address
	case t.address[0] == '@':
		return "grpc:unix-abstract:" + t.address[1:]
	}
	return "grpc:unix:" + t.address
}

// Escape percent-encodes the bytes of s that an authority must not contain, as grpc-go does.
func Escape(s string) string {
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

// forDialer returns the address for the dial function of WithContextDialer, as in grpc-go.
func (t *Target) forDialer() string {
	switch {
	case t.network != "unix":
		return t.address
	case filepath.IsAbs(t.address):
		return "unix://" + t.address
	}
	return "unix:" + t.address
}

// host returns the host of a tcp target.
func (t *Target) host() string {
	host, _, _ := net.SplitHostPort(t.address)
	return host
}

// staysHere reports whether the target is certainly on this machine, without asking a name
// server.
func (t *Target) staysHere() bool {
	if t.network == "unix" {
		return true
	}
	host := t.host()
	ip, err := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || err == nil && ip.Unmap().IsLoopback()
}
