package web_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/nearcall/nearcall"
)

// TestPagesOfForeignOriginsMakeNoCalls sends what browsers send.
func TestPagesOfForeignOriginsMakeNoCalls(t *testing.T) {
	calls := 0
	count := &service{unary: func(context.Context, *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		calls++
		return &testpb.SimpleResponse{}, nil
	}}
	none := start(t, count)
	some := start(t, count, nearcall.WebOrigins("https://shop.example", "http://localhost:5173"))
	all := start(t, count, nearcall.WebOrigins("*"))
	for _, c := range []struct {
		name   string
		site   *site
		ok     bool
		header []string
	}{
		{"no browser", none, true, nil},
		{"no browser, a name of its own choice", none, true, []string{"Host", "anything.example"}},
		{"the same host", none, true, []string{"Origin", "http://" + none.lis.Addr().String()}},
		{"the same host behind TLS", none, true, []string{"Origin", "https://localhost", "Host", "localhost"}},
		{"localhost", none, true, []string{"Origin", "http://localhost:1", "Host", "localhost:1", "Sec-Fetch-Site", "same-origin"}},
		{"IPv6", none, true, []string{"Origin", "http://[::1]:1", "Host", "[::1]:1"}},
		{"typed by the user", none, true, []string{"Sec-Fetch-Site", "none"}},
		{"another host", none, false, []string{"Origin", "https://evil.example"}},
		{"another port", none, false, []string{"Origin", "http://127.0.0.1:1"}},
		{"a sandboxed page", none, false, []string{"Origin", "null"}},
		{"no origin, but another site", none, false, []string{"Sec-Fetch-Site", "cross-site"}},
		{"no origin, but another port", none, false, []string{"Sec-Fetch-Site", "same-site"}},
		{"a name that resolves to this machine", none, false, []string{"Origin", "http://evil.example", "Host", "evil.example"}},
		{"the same without an origin", none, false, []string{"Sec-Fetch-Site", "same-origin", "Host", "evil.example:80"}},
		{"two origins", some, false, []string{"Origin", "http://127.0.0.1", "Origin", "https://shop.example"}},
		{"an allowed origin", some, true, []string{"Origin", "https://shop.example", "Sec-Fetch-Site", "cross-site"}},
		{"its host, through a proxy", some, true, []string{"Origin", "https://shop.example:443", "Host", "shop.example"}},
		{"another scheme", some, false, []string{"Origin", "http://shop.example"}},
		{"a longer name", some, false, []string{"Origin", "https://shop.example.evil.example"}},
		{"any origin", all, true, []string{"Origin", "https://evil.example", "Sec-Fetch-Site", "cross-site"}},
		{"any site", all, true, []string{"Sec-Fetch-Site", "cross-site"}},
	} {
		before := calls
		a := c.site.post("UnaryCall", "{}", c.header...)
		if c.ok != (a.code == http.StatusOK) || c.ok != (calls == before+1) {
			t.Errorf("%s: %d, %s", c.name, a.code, a.body)
		}
		if !c.ok {
			if a.want(t, 403, "permission_denied"); a.header.Get("Access-Control-Allow-Origin") != "" {
				t.Errorf("%s: %v", c.name, a.header)
			}
		}
	}
	// A GET is refused for a host that a stranger may have chosen, whatever else it has.
	none.do("GET", none.url+"UnaryCall", "", "Host", "evil.example").want(t, 403, "is no name of this machine")
}

func TestBrowsersLearnWhatPagesMayDo(t *testing.T) {
	s := start(t, failing(), nearcall.WebOrigins("https://shop.example"))
	ask := []string{"Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "content-type,connect-protocol-version, x-custom"}
	a := s.do("OPTIONS", s.url+"UnaryCall", "", append(ask, "Origin", "https://shop.example")...)
	for name, want := range map[string]string{
		"Access-Control-Allow-Origin": "https://shop.example", "Access-Control-Allow-Credentials": "true", "Access-Control-Allow-Methods": "GET, POST",
		"Access-Control-Allow-Headers": "content-type, connect-protocol-version, x-custom", "Access-Control-Max-Age": "7200",
	} {
		if got := a.header.Get(name); got != want || a.code != http.StatusNoContent {
			t.Errorf("%d: %s is %q, want %q", a.code, name, got, want)
		}
	}
	if v := strings.Join(a.header.Values("Vary"), ", "); !strings.Contains(v, "Origin") {
		t.Errorf("the answer varies with %q", v)
	}
	s.do("OPTIONS", s.url+"UnaryCall", "", append(ask, "Origin", "https://evil.example")...).want(t, 403, "permission_denied")
	s.do("OPTIONS", s.url+"UnaryCall", "").want(t, 405, "")

	a = s.post("UnaryCall", `{"responseSize":1}`, "Origin", "https://shop.example")
	if got := a.header.Get("Access-Control-Expose-Headers"); !strings.Contains(got, "Trailer-X-After-Bin, X-Seen, X-Seen-Bin") {
		t.Errorf("the page can read %q", got)
	}
	all := start(t, failing(), nearcall.WebOrigins("*"))
	a = all.post("UnaryCall", `{}`, "Origin", "https://any.example")
	if a.header.Get("Access-Control-Allow-Origin") != "*" || a.header.Get("Access-Control-Allow-Credentials") != "" {
		t.Errorf("%v", a.header)
	}
}

func TestOriginsAreWrittenInFull(t *testing.T) {
	for _, wrong := range []string{"", "shop.example", "https://", "https://shop.example/", "https://*.example", "https://u@shop.example", "https://shop.example?x", "//shop.example"} {
		func() {
			defer func() {
				if r := recover(); r == nil {
					t.Errorf("%q is accepted", wrong)
				}
			}()
			nearcall.WebOrigins(wrong)
		}()
	}
	nearcall.WebOrigins("https://Shop.example:443", "http://[::1]:80", "chrome-extension://abc", "*")
}
