package proxies

import (
	"context"
	"errors"
	"net/netip"
	"strings"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/nearcall/nearcall"
)

// CallerOf returns the address of the machine that makes a handler's call. Connections from
// proxies are the proxy's, which says in X-Forwarded-For whose request it passes on.
func CallerOf(ctx context.Context, proxies netip.Prefix) (netip.Addr, error) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return netip.Addr{}, errors.New("the context is not a handler's")
	}
	near, err := netip.ParseAddrPort(p.Addr.String())
	if err != nil || !proxies.Contains(near.Addr()) {
		return near.Addr(), err
	}
	said := metadata.ValueFromIncomingContext(ctx, "x-forwarded-for") // of a call over plain HTTP
	if r, ok := nearcall.WebSocketRequest(ctx); ok {
		said = r.Header.Values("X-Forwarded-For")
	}
	if len(said) == 0 {
		return near.Addr(), nil // not through a proxy
	}
	// A proxy appends to what the client sent, if it does not replace it.
	all := strings.Split(said[len(said)-1], ",")
	return netip.ParseAddr(strings.TrimSpace(all[len(all)-1]))
}
