package nearcall

import (
	"errors"
	"fmt"
	"strings"
)

// A parsedTarget is a target, taken apart.
type parsedTarget struct {
	scheme string // schemeInproc or schemeGRPC
	rest   string // the name, or what grpc-go takes
}

const (
	schemeInproc = "inproc"
	schemeGRPC   = "grpc"
)

// later are the schemes that belong to nearcall but cannot be dialed yet.
// grpc-go would take them for host names.
var later = map[string]bool{"shm": true, "tcp": true, "ws": true, "wss": true, "quic": true}

// parseTarget takes a target apart. Whatever is not nearcall's goes to
// grpc-go.
func parseTarget(target string) (parsedTarget, error) {
	if target == "" {
		return parsedTarget{}, errors.New("the target is empty; write inproc:NAME, or what grpc.NewClient takes")
	}
	scheme, rest, found := strings.Cut(target, ":")
	switch {
	case !found:
	case scheme == schemeInproc:
		if rest == "" || strings.HasPrefix(rest, "//") || strings.TrimSpace(rest) != rest {
			return parsedTarget{}, fmt.Errorf("malformed name %q; write inproc:NAME, with a name that neither is empty nor starts with // or ends in space", rest)
		}
		return parsedTarget{schemeInproc, rest}, nil
	case scheme == schemeGRPC:
		if rest == "" {
			return parsedTarget{}, errors.New("nothing follows grpc:; write grpc:TARGET with what grpc.NewClient takes")
		}
		return parsedTarget{schemeGRPC, rest}, nil
	case later[scheme]:
		return parsedTarget{}, fmt.Errorf("%s: is not available in this version; use inproc:NAME within the process, or grpc:TARGET across processes", scheme)
	}
	return parsedTarget{schemeGRPC, target}, nil
}
