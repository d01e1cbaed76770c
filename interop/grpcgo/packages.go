package main

import (
	"path"
	"slices"
)

// A pkg is a package of grpc-go that is copied and built with other imports.
type pkg struct {
	name  string // in test names and in PACKAGES; "" if it has no tests
	from  string // where it is in grpc-go
	to    string // where the copy goes; the last element is unique
	files []string
	// units are patterns of path.Match for files whose tests are not run: they make no calls.
	// They are built as they are, because other files use them.
	units []string
	// balanced are patterns of files whose tests need targets with resolvers and balancers.
	balanced []string
}

// below is the folder for everything that is added to the copy, except for packages that
// must be next to an internal package that they import.
const below = "neartest"

// helpers are the packages that the tests share.
var helpers = []pkg{
	{from: "internal/stubserver", to: "neartest/shim/stubserver", files: []string{"stubserver.go"}},
	{from: "internal/testutils", to: "neartest/shim/testutils", files: []string{"*.go"}},
	{from: "internal/testutils/pickfirst", to: "neartest/shim/testutils/pickfirst", files: []string{"*.go"}},
	{from: "internal/testutils/roundrobin", to: "neartest/shim/testutils/roundrobin", files: []string{"*.go"}},
	{from: "internal/testutils/rls", to: "neartest/shim/testutils/rls", files: []string{"*.go"}},
	{from: "testdata/grpc_testing_not_regenerated", to: "reflection/neartest/notregenerated", files: []string{"*.go"}},
	{from: "interop", to: "neartest/interop", files: []string{"orcalb.go", "test_utils.go"}},
}

// suites are the packages of tests that make calls. grpc-go's unit tests of its parts
// do not test nearcall and are left out.
var suites = []pkg{
	{name: "test", from: "test", to: "neartest/test", files: []string{"*.go"}, balanced: []string{
		// Load balancers, resolvers, channelz, frames of HTTP/2 and the states of subconnections.
		"balancer_test.go", "balancer_switching_test.go", "channelz_test.go", "channelz_linux_test.go",
		"clientconn_state_transition_test.go", "config_selector_test.go", "control_plane_status_test.go",
		"http_header_end2end_test.go", "resolver_update_test.go", "roundrobin_test.go", "subconn_test.go",
	}},
	{name: "stats", from: "stats", to: "neartest/stats", files: []string{"stats_test.go"}},
	{name: "root", from: ".", to: "neartest/root", files: []string{
		"server_ext_test.go", "stream_test.go", "producer_ext_test.go", "resolver_balancer_ext_test.go",
	}, balanced: []string{"producer_ext_test.go", "resolver_balancer_ext_test.go"}},
	{name: "status", from: "status", to: "neartest/status", files: []string{"status_ext_test.go"}},
	{name: "encoding", from: "encoding", to: "encoding/neartest/encoding", files: []string{"encoding_test.go", "compressor_test.go"}},
	{name: "health", from: "health", to: "neartest/health", files: []string{"server_test.go"}},
	{name: "credentials", from: "credentials", to: "neartest/credentials", files: []string{"credentials_ext_test.go", "tls_ext_test.go"}},
	{name: "reflection", from: "reflection/test", to: "reflection/neartest/reflection", files: []string{"serverreflection_test.go"}},
	{name: "idle", from: "internal/idle", to: "neartest/idle", files: []string{"idle_e2e_test.go"}},
	{name: "authz", from: "authz", to: "neartest/authz", files: []string{"grpc_authz_end2end_test.go", "grpc_authz_server_interceptors_test.go"}},
	{name: "audit", from: "authz/audit", to: "neartest/audit", files: []string{"audit_logging_test.go"}},
	{name: "jwt", from: "credentials/jwt", to: "neartest/jwt", files: []string{"token_file_call_creds_ext_test.go"}},
	{name: "tls", from: "experimental/credentials", to: "experimental/credentials/neartest/tls", files: []string{"tls_ext_test.go"}},
	{name: "interop", to: "neartest/interopclient"}, // all of it is in testdata/overlay

	inPlace("balancer/endpointsharding", "endpointsharding_test.go"),
	inPlace("balancer/grpclb", "grpclb_config_test.go", "grpclb_util_test.go"),
	inPlace("balancer/lazy"),
	inPlace("balancer/leastrequest"),
	inPlace("balancer/pickfirst", "pickfirst_test.go"),
	inPlace("balancer/ringhash", "config_test.go", "picker_test.go", "ring_test.go", "ringhash_test.go"),
	inPlace("balancer/rls", "cache_test.go", "config_test.go", "metrics_test.go"), // metrics are those of an option that only grpc-go's client takes
	inPlace("balancer/weightedroundrobin", "metrics_test.go"),
	inPlace("balancer/weightedtarget", "weightedtarget_config_test.go"),
	inPlace("resolver/manual"),
}

// inPlace returns the tests of a balancer or of a resolver, which replace those in the copy.
func inPlace(folder string, units ...string) pkg {
	return pkg{name: path.Base(folder), from: folder, to: folder, files: []string{"*_test.go"}, units: units, balanced: []string{"*"}}
}

// matches reports whether one of patterns matches file.
func matches(patterns []string, file string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		ok, _ := path.Match(p, file)
		return ok
	})
}

const shim = "google.golang.org/grpc/neartest/shim/"

// imports maps the imports of grpc-go's tests to the packages that the copies import instead.
var imports = map[string]string{
	"google.golang.org/grpc": shim + "grpc",
	"net":                    shim + "net",
	"google.golang.org/grpc/internal/stubserver":                   shim + "stubserver",
	"google.golang.org/grpc/internal/testutils":                    shim + "testutils",
	"google.golang.org/grpc/internal/testutils/pickfirst":          shim + "testutils/pickfirst",
	"google.golang.org/grpc/internal/testutils/rls":                shim + "testutils/rls",
	"google.golang.org/grpc/internal/testutils/roundrobin":         shim + "testutils/roundrobin",
	"google.golang.org/grpc/testdata/grpc_testing_not_regenerated": "google.golang.org/grpc/reflection/neartest/notregenerated",
}

// A patch changes a line of a copy. The text that it replaces must occur exactly once.
type patch struct {
	file     string
	old, new string
	why      string
}

var patches = []patch{
	{
		file: "orca/call_metrics.go",
		old:  "func unaryInt(",
		new:  "var UnaryInt, StreamInt = unaryInt, streamInt\n\nfunc unaryInt(",
		why:  "the tests need the interceptors",
	},
	{
		file: "balancer/weightedroundrobin/balancer_test.go",
		old:  "orca.CallMetricsServerOption(nil)",
		new:  "grpc.ChainUnaryInterceptor(orca.UnaryInt(nil)), grpc.ChainStreamInterceptor(orca.StreamInt(nil))",
		why:  "the option is these two interceptors, for a server of grpc-go",
	},
	{
		file: "neartest/status/status_ext_test.go",
		old:  "	}, {\n		name: \"handler server\",\n		startServerFunc: func(ss *stubserver.StubServer) error {\n			return ss.StartHandlerServer()\n		},\n	}} {\n",
		new:  "	}} {\n",
		why:  "nearcall's server is no http.Handler",
	},
	{
		file: "neartest/test/end2end_test.go",
		old:  "[]env{tcpClearEnv, tcpTLSEnv, tcpClearRREnv, tcpTLSRREnv, handlerEnv, noBalancerEnv}",
		new:  "environments()",
		why:  "only the environments that nearcall can be",
	},
	{
		file: "neartest/stats/stats_test.go",
		old:  `fmt.Sprintf("test/0.0.1 grpc-go/%s", grpc.Version)`,
		new:  `"test/0.0.1 " + near.UserAgent()`,
		why:  "the user agent has the library's name",
	},
	{
		file: "neartest/stats/stats_test.go",
		old:  "import (\n",
		new:  "import (\n\t_ \"google.golang.org/grpc/encoding/gzip\"\n\t\"google.golang.org/grpc/neartest/shim/near\"\n",
		why:  "docs/migrate.md: instead of RPCCompressor import gzip",
	},
	{
		file: "neartest/stats/stats_test.go",
		old:  "if st.LocalAddr.String() != e.serverAddr",
		new:  "if !near.On.Mapped() && st.LocalAddr.String() != e.serverAddr",
		why:  "the server's address is made up",
	},
	{
		file: "neartest/stats/stats_test.go",
		old:  "if st.RemoteAddr.String() != e.serverAddr",
		new:  "if !near.On.Mapped() && st.RemoteAddr.String() != e.serverAddr",
		why:  "the server's address is made up",
	},
	{
		file: "neartest/stats/stats_test.go",
		old:  "if st.Authority != wantAuthority",
		new:  "if !near.On.Mapped() && st.Authority != wantAuthority",
		why:  "the authority is the server's address",
	},
}
