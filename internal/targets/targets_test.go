package targets

import (
	"context"
	"io"
	"net"
	"runtime"
	"strings"
	"testing"

	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/socketfile"
	"github.com/nearcall/nearcall/internal/testing/needs"
)

func TestTargetsAreTakenApart(t *testing.T) {
	type parts struct{ scheme, network, address, authority, dialled string }
	targets := map[string]parts{
		"tcp:host:80":          {"tcp", "tcp", "host:80", "host:80", "host:80"},
		"tcp:[::1]:80":         {"tcp", "tcp", "[::1]:80", "[::1]:80", "[::1]:80"},
		"tcp:[fe80::1%eth]:1":  {"tcp", "tcp", "[fe80::1%eth]:1", "[fe80::1%25eth]:1", "[fe80::1%eth]:1"},
		"tcp:host:https":       {"tcp", "tcp", "host:https", "host:https", "host:https"},
		"unix:rel/s":           {"unix", "unix", "rel/s", "localhost", "unix:rel/s"},
		"unix:/abs/s":          {"unix", "unix", "/abs/s", "localhost", "unix:///abs/s"},
		"unix:///abs/s":        {"unix", "unix", "/abs/s", "localhost", "unix:///abs/s"},
		"unix:/a b%20c?d#e":    {"unix", "unix", "/a b%20c?d#e", "localhost", "unix:///a b%20c?d#e"},
		"inproc:name":          {scheme: "inproc", authority: "name"},
		"inproc:a/b\r\n~\x7fé": {scheme: "inproc", authority: "a%2Fb%0D%0A~%7F%C3%A9"},
		"grpc:unix:/abs/s":     {scheme: "grpc"},
		"UNIX:/Abs/s":          {"unix", "unix", "/Abs/s", "localhost", "unix:///Abs/s"},
		"InProc:Name":          {scheme: "inproc", authority: "Name"},
		"localhost:80":         {scheme: "grpc"},
		"dns:///host:80":       {scheme: "grpc"},
		"host":                 {scheme: "grpc"},
	}
	if runtime.GOOS == "linux" {
		for target, want := range map[string]parts{
			"shm:rel/s":      {"shm", "unix", "rel/s", "localhost", "unix:rel/s"},
			"shm:///abs/s":   {"shm", "unix", "/abs/s", "localhost", "unix:///abs/s"},
			"shm:/abs/s":     {"shm", "unix", "/abs/s", "localhost", "unix:///abs/s"},
			"shm:/a b%20c?d": {"shm", "unix", "/a b%20c?d", "localhost", "unix:///a b%20c?d"},
		} {
			targets[target] = want
		}
	}
	for target, want := range targets {
		p, err := Parse(target)
		if err != nil {
			t.Errorf("%q: %v", target, err)
			continue
		}
		got := parts{scheme: p.Scheme.name, network: p.network, address: p.address}
		if p.Scheme.authority != nil {
			got.authority = p.Scheme.authority(p)
		}
		if p.network != "" {
			got.dialled = p.forDialer()
		}
		if runtime.GOOS == "windows" { // these paths are not absolute there
			got.dialled, want.dialled = "", ""
		}
		if got != want {
			t.Errorf("%q: %+v, want %+v", target, got, want)
		}
	}
	p, err := Parse("unix-abstract:name")
	if linux := runtime.GOOS == "linux"; linux != (err == nil) || linux && (p.address != "@name" || p.forDialer() != "unix:@name") {
		t.Errorf("unix-abstract:name: %+v, %v", p, err)
	}
}

func TestWhatStaysOnTheMachineNeedsNoCredentials(t *testing.T) {
	for target, stays := range map[string]bool{
		"tcp:localhost:1": true, "tcp:LOCALHOST:1": true, "tcp:127.9.9.9:1": true, "tcp:[::1]:1": true, "tcp:[::ffff:127.0.0.1]:1": true,
		"unix:/tmp/x":   true,
		"tcp:0.0.0.0:1": false, "tcp:10.0.0.1:1": false, "tcp:localhost.example:1": false, "tcp:[::]:1": false, "tcp:127.0.0.1.example:1": false,
	} {
		p, err := Parse(target)
		if err != nil || p.staysHere() != stays {
			t.Errorf("%s: %t, %v", target, p.staysHere(), err)
		}
	}
}

func TestTargetsOfSharedMemoryAreForLinuxAlone(t *testing.T) {
	p, err := Parse("shm:/tmp/x")
	switch {
	case runtime.GOOS == "linux":
		if err != nil || !p.staysHere() {
			t.Errorf("%t, %v", p.staysHere(), err)
		}
	case err == nil || !strings.Contains(err.Error(), "write unix:PATH"):
		t.Errorf("%s has no shared memory: %v", runtime.GOOS, err)
	}
	for target, hint := range map[string]string{
		"shm:":                             "names no file",
		"shm:/tmp/":                        "names no file",
		"shm:@name":                        "shm:PATH",
		"shm:/" + strings.Repeat("x", 200): "no more than",
		"shm:/tmp/x\x00":                   "zero byte",
	} {
		if runtime.GOOS != "linux" {
			hint = "unix:PATH"
		}
		if _, err := Parse(target); err == nil || !strings.Contains(err.Error(), hint) {
			t.Errorf("%.20q: %v does not mention %q", target, err, hint)
		}
	}
}

// On Windows a path can begin with a drive, and both kinds of slash separate names.
func TestPathsOfUnixTargets(t *testing.T) {
	for _, c := range []struct {
		rest             string
		elsewhere, there string // the path, or "!" and a part of the error's text
	}{
		{`rel/s`, `rel/s`, `rel/s`},
		{`/abs/s`, `/abs/s`, `/abs/s`},
		{`///abs/s`, `/abs/s`, `/abs/s`},
		{`C:\dir\s`, `C:\dir\s`, `C:\dir\s`},
		{`C:/dir/s`, `C:/dir/s`, `C:/dir/s`},
		{`c:s`, `c:s`, `c:s`},
		{`\dir\s`, `\dir\s`, `\dir\s`},
		{`\\server\share\s`, `\\server\share\s`, `\\server\share\s`},
		{`//C:\dir\s`, `!no host, and "C:\\dir\\s"`, `C:\dir\s`},
		{`//C:/dir/s`, `!no host, and "C:"`, `C:/dir/s`},
		{`///C:/dir/s`, `/C:/dir/s`, `C:/dir/s`},
		{`//host/s`, `!no host`, `!no host`},
		{`//1:/s`, `!no host`, `!no host`},
		{`dir\`, `dir\`, `!names no file`},
		{`C:`, `C:`, `!names no file`},
		{`///C:`, `/C:`, `!names no file`},
		{`C:\`, `C:\`, `!names no file`},
		{`C:/`, `!names no file`, `!names no file`},
		{``, `!names no file`, `!names no file`},
		{`//`, `!no host`, `!no host`},
		{`///`, `!names no file`, `!names no file`},
	} {
		for windows, want := range map[bool]string{false: c.elsewhere, true: c.there} {
			path, err := socketPath(c.rest, windows)
			text, fails := strings.CutPrefix(want, "!")
			if fails != (err != nil) || fails && !strings.Contains(err.Error(), text) || !fails && path != want {
				t.Errorf("unix:%s, on Windows %t: %q, %v, want %q", c.rest, windows, path, err, want)
			}
		}
	}
}

// On a system without unix sockets the error suggests an alternative. A custom dialer
// can still reach the target.
func TestASystemWithoutUnixSocketsSaysSo(t *testing.T) {
	const target = "unix:none"
	_, err := Dialer(target, options.NewClient(nil), Caller{})
	if needs.HasUnixSockets() {
		if err != nil {
			t.Error(err)
		}
		return
	}
	_, lisErr := Listen(target, socketfile.Options{})
	for _, err := range []error{err, lisErr} {
		if err == nil || !strings.Contains(err.Error(), "no unix sockets; use tcp:localhost:PORT") {
			t.Errorf("the error is %v", err)
		}
	}
	own := options.NewClient(nil)
	own.ConnDialer = func(context.Context, string) (net.Conn, error) { return nil, io.EOF }
	if _, err := Dialer(target, own, Caller{}); err != nil {
		t.Fatalf("with a dialer: %v", err)
	}
}

func TestEditDistanceCountsSlips(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{
		{"", "", 0},
		{"unix", "unix", 0},
		{"", "tcp", 3},
		{"tpc", "tcp", 1},    // swapped
		{"unx", "unix", 1},   // left out
		{"unnix", "unix", 1}, // doubled
		{"shn", "shm", 1},    // replaced
		{"inprc", "inproc", 1},
		{"Place", "List", 5},
	} {
		if got := EditDistance(c.a, c.b); got != c.want {
			t.Errorf("EditDistance(%q, %q) is %d, want %d", c.a, c.b, got, c.want)
		}
		if got := EditDistance(c.b, c.a); got != c.want {
			t.Errorf("EditDistance(%q, %q) is %d, want %d", c.b, c.a, got, c.want)
		}
	}
}
