package nearcall

import (
	"fmt"
	"net"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/status"
)

// suggestion returns the question whether a user meant another target than text,
// which [Listen] cannot listen on; it is empty where nothing suggests itself.
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

// didYouMean asks for a target of the scheme called name, if rest suits it, or else
// for its form.
func didYouMean(name, rest string) string {
	text := name + ":" + rest
	t, err := parseTarget(text)
	if err != nil {
		return fmt.Sprintf("did you mean %s?", t.scheme.usage)
	}
	return fmt.Sprintf("did you mean %q?", text)
}

// synonyms are names that users of other libraries may expect.
var synonyms = map[string]string{"mem": "inproc", "memory": "inproc", "inprocess": "inproc", "uds": "unix"}

// similar returns the scheme that a user may have meant who wrote name:rest; nil where
// there is none.
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
		if distance(name, s.name) <= slips {
			return s
		}
	}
	return nil
}

// distance is how many letters have to be added, left out or replaced, or two
// neighbours swapped, to get from a to b.
func distance(a, b string) int {
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

// slip returns what to add to errors of grpc-go about a target that it took, but
// that looks like one of nearcall's with a slip of the pen; it is empty for others. The
// target still goes to grpc-go: it may mean something to a resolver or a dialer.
func slip(target string) string {
	name, rest, found := strings.Cut(target, ":")
	if !found || isPort(rest) || resolver.Get(strings.ToLower(name)) != nil {
		return ""
	}
	if s := similar(name, rest); s != nil {
		return "; " + didYouMean(s.name, rest)
	}
	return ""
}

// withHint returns err with the hint that slip has returned, where grpc-go could not
// connect.
func withHint(err error, hint string) error {
	if s, ok := err.(interface{ GRPCStatus() *status.Status }); ok && hint != "" && s.GRPCStatus().Code() == codes.Unavailable {
		p := s.GRPCStatus().Proto()
		p.Message += hint
		return status.FromProto(p).Err()
	}
	return err
}
