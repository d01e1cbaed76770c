package targets

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc/resolver"

	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/spelling"
)

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
		if spelling.Distance(name, s.name) <= slips {
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
