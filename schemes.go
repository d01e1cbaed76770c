package nearcall

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/backoff"

	"github.com/nearcall/nearcall/internal/link"
)

// A scheme is what a target begins with. It has all that differs between targets.
type scheme struct {
	name  string
	usage string // a target of this scheme, as errors show it

	// parse fills in t from t.rest.
	parse func(t *parsedTarget) error

	// authority is what calls are addressed to, as in grpc-go, where no option says
	// otherwise. It is nil for schemes without sessions of their own.
	authority func(t *parsedTarget) string

	// dialer returns what opens sessions with t, and the authority of their calls.
	// It is nil where grpc-go connects.
	dialer func(t *parsedTarget, o *dialOptions) (d link.Dialer, authority string, err error)

	// listen is nil where nearcall cannot listen.
	listen func(t *parsedTarget, o *listenOptions) (Listener, error)

	backoff backoff.Config // between attempts to connect, unless an option says otherwise
	sockets bool           // sessions hold a socket, which is closed when they are idle
}

// nearBackoff is the backoff if no network is in between. An attempt costs some
// microseconds, and a server that starts again should be found soon.
var nearBackoff = backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second}

// schemes are all that nearcall knows. Any other target goes to grpc-go.
var schemes = []*scheme{
	{
		name: "inproc", usage: "inproc:NAME",
		parse: (*parsedTarget).parseInproc, authority: (*parsedTarget).name,
		dialer: dialInproc, listen: listenInproc,
		backoff: nearBackoff,
	},
	{
		name: "shm", usage: "shm:PATH",
		parse: (*parsedTarget).parseShm, authority: localhost,
		dialer: dialShm, listen: listenShm,
		backoff: nearBackoff, sockets: true,
	},
	{
		name: "unix", usage: "unix:PATH",
		parse: (*parsedTarget).parseUnix, authority: localhost,
		dialer: dialSocket, listen: listenUnix,
		backoff: nearBackoff, sockets: true,
	},
	{
		name: "unix-abstract", usage: "unix-abstract:NAME",
		parse: (*parsedTarget).parseAbstract, authority: localhost,
		dialer: dialSocket, listen: listenAbstract,
		backoff: nearBackoff, sockets: true,
	},
	{
		name: "tcp", usage: "tcp:HOST:PORT",
		parse: (*parsedTarget).parseTCP, authority: (*parsedTarget).name,
		dialer: dialSocket, listen: listenTCP,
		backoff: backoff.DefaultConfig, sockets: true,
	},
	schemeGRPC,
	// These are reserved: grpc-go would take them for host names.
	{name: "quic", parse: notYet},
	{name: "ws", parse: notYet},
	{name: "wss", parse: notYet},
}

// schemeGRPC is that of targets that go to grpc-go: rest is what grpc-go takes.
var schemeGRPC = &scheme{
	name: "grpc", usage: "grpc:TARGET",
	parse: func(t *parsedTarget) error {
		if t.rest == "" {
			return errors.New("nothing follows grpc:; write grpc:TARGET, with what grpc.NewClient takes")
		}
		return nil
	},
}

func notYet(t *parsedTarget) error {
	return fmt.Errorf("%s: is not available in this version; use unix:PATH or tcp:HOST:PORT", t.scheme.name)
}

// schemeOf returns the scheme of this name, in upper or lower case as in grpc-go;
// nil where nearcall has none.
func schemeOf(name string) *scheme {
	for _, s := range schemes {
		if strings.EqualFold(s.name, name) {
			return s
		}
	}
	return nil
}

// parseTarget takes a target apart. Whatever is not nearcall's goes to grpc-go.
func parseTarget(target string) (*parsedTarget, error) {
	if target == "" {
		return nil, errors.New("the target is empty; write inproc:NAME, unix:PATH, tcp:HOST:PORT, or what grpc.NewClient takes")
	}
	t := &parsedTarget{scheme: schemeGRPC, text: target, rest: target}
	if name, rest, found := strings.Cut(target, ":"); found {
		if s := schemeOf(name); s != nil {
			t.scheme, t.rest = s, rest
			return t, s.parse(t)
		}
	}
	return t, nil
}

// listenUsage lists what [Listen] takes.
func listenUsage() string {
	var all []string
	for _, s := range schemes {
		if s.listen != nil {
			all = append(all, s.usage)
		}
	}
	last := len(all) - 1
	return strings.Join(all[:last], ", ") + " or " + all[last]
}
