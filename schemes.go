package nearcall

import (
	"errors"
	"strings"
	"time"

	"google.golang.org/grpc/backoff"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/options"
)

// A scheme is the prefix of a target. It holds everything that differs between targets.
type scheme struct {
	name  string
	usage string // the form of its targets, for error messages

	// parse fills in t from t.rest.
	parse func(t *parsedTarget) error

	// authority returns the default :authority of calls, as in grpc-go. It is nil for
	// schemes without sessions of their own.
	authority func(t *parsedTarget) string

	// dialer returns the dialer for t and the authority of its calls. It is nil for
	// targets that go to grpc-go.
	dialer func(t *parsedTarget, o *options.Dial) (d link.Dialer, authority string, err error)

	// listen is nil for schemes that nearcall cannot listen on.
	listen func(t *parsedTarget, o *listenOptions) (Listener, error)

	module  string         // the package to import for the scheme; "" if it is part of this one
	backoff backoff.Config // default between connection attempts
	sockets bool           // sessions hold a socket, which the idle timeout closes
}

// nearBackoff is the backoff for targets without a network in between. An attempt costs
// some microseconds, and a restarted server should be found soon.
var nearBackoff = backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second}

// schemes are the schemes that nearcall knows. Any other target goes to grpc-go.
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
	{
		name: "ws", usage: "ws://HOST:PORT/PATH",
		parse: (*parsedTarget).parseWebSocket, authority: (*parsedTarget).hostOfURL,
		dialer: dialWebSocket, listen: listenWebSocket,
		backoff: backoff.DefaultConfig, sockets: true,
	},
	{
		name: "wss", usage: "wss://HOST:PORT/PATH",
		parse: (*parsedTarget).parseWebSocket, authority: (*parsedTarget).hostOfURL,
		dialer: dialWebSocket, listen: listenWebSocket,
		backoff: backoff.DefaultConfig, sockets: true,
	},
	schemeGRPC,
	{
		name: "quic", usage: "quic:HOST:PORT", module: "github.com/nearcall/nearcall/quic",
		parse: (*parsedTarget).parseModule, authority: (*parsedTarget).name,
		dialer: dialModule, listen: listenModule,
		backoff: backoff.DefaultConfig, sockets: true,
	},
}

// schemeGRPC is the scheme of targets that go to grpc-go; rest is the target for
// grpc-go.
var schemeGRPC = &scheme{
	name: "grpc", usage: "grpc:TARGET",
	parse: func(t *parsedTarget) error {
		if t.rest == "" {
			return errors.New("nothing follows grpc:; write grpc:TARGET, with what grpc.NewClient takes")
		}
		return nil
	},
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

// parseTarget parses a target. A target without a scheme of nearcall's goes to grpc-go.
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
