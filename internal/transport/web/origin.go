package web

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/nearcall/nearcall/internal/link"
)

// Browsers send requests for pages of any origin, with the user's network and cookies. These
// rules keep pages of foreign origins from making calls:
//
//   - A request is refused if its Origin is not allowed and not this server's own host, with
//     or without a preflight before it.
//   - A request that a browser marks as coming from another site, by Sec-Fetch-Site, is
//     refused if it has no Origin. That is how links, images and scripts arrive.
//   - A request over the loopback interface must name this machine in Host. Otherwise a
//     page could let its own name resolve to 127.0.0.1, and be of the same origin as this
//     server (DNS rebinding).
//
// Calls need content types that browsers send to another origin only after a preflight,
// except for GET, which is only for methods without side effects.

// origins are the web origins whose pages may make calls.
type origins struct {
	any   bool
	exact map[string]bool // as browsers send them
	hosts map[string]bool // their host names
}

// parseOrigins parses the origins that the user has set, and checks them.
func parseOrigins(list []string) (o origins, err error) {
	o.exact, o.hosts = make(map[string]bool), make(map[string]bool)
	for _, s := range list {
		if s == "*" {
			o.any = true
			continue
		}
		u, err := url.Parse(s)
		if err != nil || u.Scheme == "" || u.Host == "" || s != u.Scheme+"://"+u.Host || strings.ContainsAny(s, "*@") {
			return o, fmt.Errorf("%q is no web origin: write it as scheme://host or scheme://host:port, without a path, or \"*\" for all", s)
		}
		o.exact[canonicalOrigin(u)] = true
		o.hosts[strings.ToLower(u.Hostname())] = true
	}
	return o, nil
}

// canonicalOrigin returns u's origin as browsers send it: in lower case, without the
// scheme's own port.
func canonicalOrigin(u *url.URL) string {
	host := strings.ToLower(u.Host)
	switch u.Scheme {
	case "http":
		host = strings.TrimSuffix(host, ":80")
	case "https":
		host = strings.TrimSuffix(host, ":443")
	}
	return u.Scheme + "://" + host
}

// check returns why a request is refused, or "".
func (o *origins) check(local net.Addr, r *http.Request) string {
	origin := r.Header.Get("Origin")
	site := r.Header.Get("Sec-Fetch-Site")
	switch {
	case len(r.Header.Values("Origin")) > 1:
		return "the request has several Origin headers"
	case origin != "" && (o.any || o.exact[origin]):
		return ""
	case origin != "" && !sameHost(origin, r.Host):
		return fmt.Sprintf("pages of the origin %.200q must not make calls here; allow it with nearcall.WebOrigins", origin)
	case origin == "" && site != "" && site != "same-origin" && site != "none" && !o.any:
		return "a page of another origin must not make calls here; allow it with nearcall.WebOrigins, and send the request with an Origin"
	case (origin != "" || site != "" || r.Method == http.MethodGet) && isLoopback(local) && !o.isLocal(r.Host):
		return fmt.Sprintf("the host %.200q is no name of this machine: a page that makes it one is not trusted; allow its origin with nearcall.WebOrigins", r.Host)
	}
	return ""
}

// trusts reports whether r comes from no page, from a page of this server's host, or from a page of
// an origin that the user has named. Browsers send cookies with any page's request for a WebSocket.
func (o *origins) trusts(r *http.Request) bool {
	origin := r.Header.Get("Origin")
	return origin == "" || o.exact[origin] || sameHost(origin, r.Host)
}

// sameHost reports whether origin names host. It ignores the scheme, because TLS may end
// at a proxy.
func sameHost(origin, host string) bool {
	u, err := url.Parse(origin)
	if err != nil || u.Host == "" {
		return false
	}
	trim := func(s string) string {
		s = strings.ToLower(s)
		if u.Scheme == "https" {
			return strings.TrimSuffix(s, ":443")
		}
		return strings.TrimSuffix(s, ":80")
	}
	return trim(u.Host) == trim(host)
}

func isLoopback(a net.Addr) bool {
	t, ok := a.(*net.TCPAddr)
	return ok && t.IP.IsLoopback()
}

// isLocal reports whether host, in a request over the loopback interface, is safe: no
// stranger can have pointed the name at this machine.
func (o *origins) isLocal(host string) bool {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	if name == "localhost" || strings.HasSuffix(name, ".localhost") || o.hosts[name] || o.any {
		return true
	}
	_, err := netip.ParseAddr(strings.Trim(name, "[]"))
	return err == nil
}

// allow adds to h, the header of a response, the fields that let a page of an allowed origin see
// the response.
func (o *origins) allow(h http.Header, r *http.Request) {
	if !o.any && len(o.exact) == 0 {
		return
	}
	h.Add("Vary", "Origin")
	switch origin := r.Header.Get("Origin"); {
	case origin == "":
	case o.exact[origin]:
		h.Set("Access-Control-Allow-Origin", origin)
		h.Set("Access-Control-Allow-Credentials", "true")
	case o.any:
		h.Set("Access-Control-Allow-Origin", "*")
	}
}

// isPreflight reports whether r is a preflight, with which a browser asks whether a page may send
// a request.
func isPreflight(r *http.Request) bool {
	return r.Method == http.MethodOptions && r.Header.Get("Origin") != "" && r.Header.Get("Access-Control-Request-Method") != ""
}

// preflight adds to h the answer to a preflight from an allowed origin.
func (o *origins) preflight(h http.Header, r *http.Request) {
	h.Add("Vary", "Access-Control-Request-Headers")
	if h.Get("Access-Control-Allow-Origin") == "" {
		return // for calls to the page's own host a browser asks no permission
	}
	h.Set("Access-Control-Allow-Methods", "GET, POST")
	h.Set("Access-Control-Max-Age", "7200")
	var names []string
	for _, list := range r.Header.Values("Access-Control-Request-Headers") {
		for name := range strings.SplitSeq(list, ",") {
			if name = strings.ToLower(strings.TrimSpace(name)); link.ValidKey(name) {
				names = append(names, name)
			}
		}
	}
	if len(names) > 0 {
		h.Set("Access-Control-Allow-Headers", strings.Join(names, ", "))
	}
}

// safelisted are headers that pages can always read, or that they do not need.
var safelisted = map[string]bool{
	"Cache-Control": true, "Content-Language": true, "Content-Length": true, "Content-Type": true,
	"Expires": true, "Last-Modified": true, "Pragma": true,
	"Connection": true, "Vary": true, "X-Content-Type-Options": true,
}

// exposeHeaders lets a page of another origin read all of a response's header.
func exposeHeaders(h http.Header) {
	if h.Get("Access-Control-Allow-Origin") == "" {
		return
	}
	var names []string
	for name := range h {
		if !safelisted[name] && !strings.HasPrefix(name, "Access-Control-") {
			names = append(names, name)
		}
	}
	if len(names) > 0 {
		slices.Sort(names)
		h.Set("Access-Control-Expose-Headers", strings.Join(names, ", "))
	}
}
