package targets

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/resolver"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/socketfile"
	"github.com/nearcall/nearcall/internal/sockopt"
)

// A scheme is the prefix of a target. It holds what differs between targets, except what follows
// from Target.network: see forGRPC, forDialer, fixed, staysHere, security and ordinary.
type scheme struct {
	name  string
	usage string // the form of its targets, for error messages

	// parse fills in t from t.Rest.
	parse func(t *Target) error

	// authority returns the default :authority of calls, as in grpc-go. It is nil for schemes
	// that go to grpc-go.
	authority func(t *Target) string

	// dialer returns the dialer for t and the authority of its calls. It is nil for
	// targets that go to grpc-go.
	dialer func(t *Target, o *options.Client, c Caller) (d link.Dialer, authority string, err error)

	// listen is nil for schemes that nearcall cannot listen on.
	listen func(t *Target, o socketfile.Options) (Listener, error)

	module  string         // the package to import for the scheme; "" if it is part of this module
	Backoff backoff.Config // default between connection attempts
	Sockets bool           // sessions hold a socket, which the idle timeout closes
}

// NearBackoff is the backoff for targets without a network in between. An attempt costs
// some microseconds, and a restarted server should be found soon.
var NearBackoff = backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second}

// schemes are the schemes that nearcall knows. Any other target goes to grpc-go.
var schemes = []*scheme{
	{
		name: "inproc", usage: "inproc:NAME",
		parse: (*Target).parseInproc, authority: (*Target).name,
		dialer: dialInproc, listen: listenInproc,
		Backoff: NearBackoff,
	},
	{
		name: "shm", usage: "shm:PATH",
		parse: (*Target).parseShm, authority: localhost,
		dialer: dialSocket, listen: listenSocket,
		Backoff: NearBackoff, Sockets: true,
	},
	{
		name: "unix", usage: "unix:PATH",
		parse: (*Target).parseUnix, authority: localhost,
		dialer: dialSocket, listen: listenSocket,
		Backoff: NearBackoff, Sockets: true,
	},
	{
		name: "unix-abstract", usage: "unix-abstract:NAME",
		parse: (*Target).parseAbstract, authority: localhost,
		dialer: dialSocket, listen: listenSocket,
		Backoff: NearBackoff, Sockets: true,
	},
	{
		name: "tcp", usage: "tcp:HOST:PORT",
		parse: (*Target).parseTCP, authority: (*Target).name,
		dialer: dialSocket, listen: listenSocket,
		Backoff: backoff.DefaultConfig, Sockets: true,
	},
	{
		name: "ws", usage: "ws://HOST:PORT/PATH",
		parse: (*Target).parseWebSocket, authority: (*Target).hostOfURL,
		dialer: dialWebSocket, listen: listenWebSocket,
		Backoff: backoff.DefaultConfig, Sockets: true,
	},
	{
		name: "wss", usage: "wss://HOST:PORT/PATH",
		parse: (*Target).parseWebSocket, authority: (*Target).hostOfURL,
		dialer: dialWebSocket, listen: listenWebSocket,
		Backoff: backoff.DefaultConfig, Sockets: true,
	},
	schemeGRPC,
	{
		name: "quic", usage: "quic:HOST:PORT", module: "github.com/nearcall/nearcall/quic",
		parse: (*Target).parseModule, authority: (*Target).name,
		dialer: dialModule, listen: listenModule,
		Backoff: backoff.DefaultConfig, Sockets: true,
	},
}

// schemeGRPC is the scheme of targets that go to grpc-go; Rest is the target for grpc-go.
var schemeGRPC = &scheme{
	name: "grpc", usage: "grpc:TARGET",
	parse: func(t *Target) error {
		if t.Rest == "" {
			return errors.New("nothing follows grpc:; write grpc:TARGET, with what grpc.NewClient takes")
		}
		return nil
	},
}

// IsGRPC reports whether t goes to grpc-go.
func (t *Target) IsGRPC() bool { return t.Scheme == schemeGRPC }

// A Caller says what a dialer of a target needs to know besides the options.
type Caller struct {
	Authority string // that a resolver has set; "" for that of the options or the target

	// Accept returns the acceptor of the peer's calls; nil for none.
	Accept func(link.Session) link.Acceptor

	// Unix returns the AuthInfo for a process; it may be nil.
	Unix func(sockopt.Process) credentials.AuthInfo
}

// Dialer returns the dialer for t, which must not go to grpc-go, and the authority of its calls.
func (t *Target) Dialer(o *options.Client, c Caller) (d link.Dialer, authority string, err error) {
	return t.Scheme.dialer(t, o, c)
}

// schemeOf returns the scheme called name, or nil. It ignores case, as grpc-go does.
func schemeOf(name string) *scheme {
	for _, s := range schemes {
		if strings.EqualFold(s.name, name) {
			return s
		}
	}
	return nil
}

// Parse parses a target. A target without one of nearcall's schemes goes to grpc-go.
func Parse(target string) (*Target, error) {
	if target == "" {
		return nil, errors.New("the target is empty; write inproc:NAME, unix:PATH, tcp:HOST:PORT or another target")
	}
	t := &Target{Scheme: schemeGRPC, text: target, Rest: target}
	if name, rest, found := strings.Cut(target, ":"); found {
		if s := schemeOf(name); s != nil {
			t.Scheme, t.Rest, t.Insists = s, rest, s == schemeGRPC
			return t, s.parse(t)
		}
	}
	return t, nil
}

// listenUsage lists the targets that [Listen] accepts.
func listenUsage() string {
	var all []string
	for _, s := range schemes {
		if s.listen != nil && s.available() {
			all = append(all, s.usage)
		}
	}
	last := len(all) - 1
	return strings.Join(all[:last], ", ") + " or " + all[last]
}

// suggestion returns a question that names the target that the user probably meant by text, which
// [Listen] cannot listen on. It is empty if there is no likely target.
func suggestion(text string) string {
	name, rest, found := strings.Cut(text, ":")
	host, port, err := net.SplitHostPort(text)
	switch {
	case !found && isPort(text):
		return didYouMean("tcp", ":"+text)
	case err == nil && isPort(port) && !strings.Contains(host, "/"):
		return didYouMean("tcp", text)
	case found:
		if s := similar(name, rest); s != nil {
			return didYouMean(s.name, rest)
		}
	case strings.ContainsAny(text, `/\`):
		return didYouMean("unix", text)
	default:
		return didYouMean("inproc", text)
	}
	return ""
}

func isPort(s string) bool {
	_, err := strconv.ParseUint(s, 10, 16)
	return err == nil
}

// didYouMean asks whether the user meant name:rest. If that is not a valid target, it asks with
// the general form of the scheme's targets instead.
func didYouMean(name, rest string) string {
	text := name + ":" + rest
	t, err := Parse(text)
	if err != nil {
		return fmt.Sprintf("did you mean %s?", t.Scheme.usage)
	}
	return fmt.Sprintf("did you mean %q?", text)
}

// synonyms maps names that users of other libraries might expect to schemes.
var synonyms = map[string]string{"mem": "inproc", "memory": "inproc", "inprocess": "inproc", "uds": "unix"}

// similar returns the scheme that the user probably meant by name:rest, or nil.
func similar(name, rest string) *scheme {
	name = strings.ToLower(name)
	if s, ok := synonyms[name]; ok {
		return schemeOf(s)
	}
	for _, s := range schemes {
		if s.usage == "" || s == schemeGRPC && strings.HasPrefix(rest, "//") { // as in grpcs://host
			continue
		}
		slips := 1
		if len(s.name) > 4 {
			slips = 2
		}
		if EditDistance(name, s.name) <= slips {
			return s
		}
	}
	return nil
}

// Hint returns a hint for grpc-go's errors about target if target looks like a misspelt target of
// nearcall's. Otherwise it returns the empty string. Such a target still goes to grpc-go, because
// a registered resolver, one of the options, or a custom dialer may know it.
func Hint(target string, o *options.Client) string {
	name, rest, found := strings.Cut(target, ":")
	name = strings.ToLower(name)
	if !found || isPort(rest) || resolver.Get(name) != nil || slices.ContainsFunc(o.UserResolvers, func(r resolver.Builder) bool { return r.Scheme() == name }) {
		return ""
	}
	if s := similar(name, rest); s != nil {
		return "; " + didYouMean(s.name, rest)
	}
	return ""
}

// EditDistance returns the edit distance of a and b: how many letters must be inserted,
// deleted or replaced, or neighbours swapped, to turn a into b.
func EditDistance(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before, last, row = last, row, before
		row[0] = i + 1
		for j := range len(b) {
			d := last[j]
			if a[i] != b[j] {
				d++
			}
			d = min(d, last[j+1]+1, row[j]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				d = min(d, before[j-1]+1)
			}
			row[j+1] = d
		}
	}
	return row[len(b)]
}
