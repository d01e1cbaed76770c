package targets

import (
	"slices"
	"testing"
)

// TestCompare shows that the cases notice a client that behaves differently.
func TestCompare(t *testing.T) {
	t.Parallel()
	all := slices.Concat(resolverCases, configCases)
	for name, spoil := range map[string]func(*Options){
		"own scheme":      func(o *Options) { o.ServiceConfig = pickFirst },
		"a set authority": func(o *Options) { o.Authority = "other.test" },
		"retries":         func(o *Options) { o.DisableRetry = !o.DisableRetry },
	} {
		i := slices.IndexFunc(all, func(k Case) bool { return k.Name == name })
		if i < 0 {
			t.Fatalf("there is no case %q", name)
		}
		setup := Setup{Kind: ordinary, Size: 3}
		want := all[i].Record(grpcClient, setup, 1)
		got := all[i].Record(dialer{dial: func(target string, o Options) (Client, error) {
			spoil(&o)
			return dialGRPC(target, o)
		}}, setup, 1)
		if slices.Equal(want.Lines, got.Lines) {
			t.Errorf("%q does not notice it:\n%v", name, got.Lines)
		}
	}
}
