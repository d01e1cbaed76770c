package web_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"net/url"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	_ "google.golang.org/grpc/encoding/gzip"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nearcall/nearcall"
)

// wrap returns a message in an envelope.
func wrap(flags byte, b string) string {
	return string(append(binary.BigEndian.AppendUint32([]byte{flags}, uint32(len(b))), b...))
}

// An envelope is one part of a stream's answer.
type envelope struct {
	flags byte
	body  string
}

// unwrap returns the envelopes in b.
func unwrap(t testing.TB, b string) (all []envelope) {
	t.Helper()
	for len(b) > 0 {
		if len(b) < 5 {
			t.Fatalf("%q is no envelope", b)
		}
		n := int(binary.BigEndian.Uint32([]byte(b[1:5])))
		if len(b) < 5+n {
			t.Fatalf("%q is shorter than its envelope says", b)
		}
		all = append(all, envelope{b[0], b[5 : 5+n]})
		b = b[5+n:]
	}
	return all
}

func encode(t testing.TB, m proto.Message) string {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func squeeze(t testing.TB, s string) string {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := io.WriteString(z, s); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// failing is a service whose unary method fails with details, after it has set metadata.
func failing() *service {
	return &service{unary: func(ctx context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		md, _ := metadata.FromIncomingContext(ctx)
		_ = grpc.SetHeader(ctx, metadata.Pairs("x-seen", strings.Join(md.Get("x-a"), "+"), "x-seen-bin", strings.Join(md.Get("x-b-bin"), "+")))
		_ = grpc.SetTrailer(ctx, metadata.Pairs("x-after", "t", "x-after-bin", "\x00\xff"))
		if in.ResponseSize > 0 {
			return &testpb.SimpleResponse{Payload: body(int(in.ResponseSize))}, nil
		}
		st, _ := status.New(codes.FailedPrecondition, "näh: 100% <b>\n").WithDetails(&durationpb.Duration{})
		return nil, st.Err()
	}}
}

func TestAnErrorOfConnectHasCodeDetailsAndMetadata(t *testing.T) {
	s := start(t, failing())
	a := s.post("UnaryCall", `{}`, "X-A", "1", "X-A", "2", "X-B-Bin", "AP8=,AQ")
	a.want(t, 400, `{"code":"failed_precondition","message":"näh: 100% \u003cb\u003e\n","details":[{"type":"google.protobuf.Duration","value":""}]}`)
	for name, want := range map[string]string{"X-Seen": "1+2", "X-Seen-Bin": base64.RawStdEncoding.EncodeToString([]byte("\x00\xff+\x01")), "Trailer-X-After": "t", "Trailer-X-After-Bin": "AP8", "X-Content-Type-Options": "nosniff"} {
		if got := a.header.Get(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	s.post("UnaryCall", `{}`, "X-B-Bin", "!").want(t, 400, "is not base64")
	s.post("UnaryCall", `{"responseSize":1}`).want(t, 200, `"body":"AA=="`)
}

func TestAStreamOfConnectEndsWithItsStatus(t *testing.T) {
	s := start(t, &service{})
	ask := wrap(0, `{"responseParameters":[{"size":1},{"size":2}]}`)
	a := s.do("POST", s.url+"StreamingOutputCall", ask, "Content-Type", "application/connect+json")
	parts := unwrap(t, a.body)
	if a.code != 200 || len(parts) != 3 || parts[1].body != `{"payload":{"body":"AAA="}}` || parts[2] != (envelope{2, "{}"}) {
		t.Errorf("%d: %q", a.code, parts)
	}
	a = s.do("POST", s.url+"StreamingInputCall", wrap(0, "{}")+wrap(0, `{"payload":{"body":"AAA="}}`), "Content-Type", "application/connect+json")
	if parts = unwrap(t, a.body); len(parts) != 2 || parts[0].body != `{"aggregatedPayloadSize":2}` {
		t.Errorf("%d: %q", a.code, parts)
	}
	for _, wrong := range []string{wrap(2, "{}"), wrap(0, "{}")[:6], "\x00\x00", wrap(1, "{}")} {
		a = s.do("POST", s.url+"StreamingInputCall", wrong, "Content-Type", "application/connect+json")
		if parts = unwrap(t, a.body); len(parts) != 1 || parts[0].flags != 2 || !strings.Contains(parts[0].body, `"code":"internal"`) {
			t.Errorf("%q: %d: %q", wrong, a.code, parts)
		}
	}
}

func TestGRPCWebIsAnsweredAsBytesAndAsText(t *testing.T) {
	s := start(t, failing())
	ask := wrap(0, encode(t, &testpb.SimpleRequest{ResponseSize: 50_000}))
	const text = "application/grpc-web-text+proto"
	for _, c := range []struct{ kind, body string }{
		{"application/grpc-web+proto", ask},
		{"application/grpc-web", ask},
		{text, base64.StdEncoding.EncodeToString([]byte(ask))},
		{text, base64.StdEncoding.EncodeToString([]byte(ask[:2])) + base64.StdEncoding.EncodeToString([]byte(ask[2:]))},
		{text, base64.RawStdEncoding.EncodeToString([]byte(ask))},
	} {
		a := s.do("POST", s.url+"UnaryCall", c.body, "Content-Type", c.kind, "X-Grpc-Web", "1")
		if a.code != 200 || a.header.Get("Content-Type") != c.kind {
			t.Errorf("%d, %v", a.code, a.header)
		}
		plain := a.body
		if c.kind == text {
			plain = decodeText(t, plain)
		}
		parts := unwrap(t, plain)
		var got testpb.SimpleResponse
		if len(parts) != 2 || proto.Unmarshal([]byte(parts[0].body), &got) != nil || len(got.Payload.Body) != 50_000 {
			t.Fatalf("%s: %d parts", c.kind, len(parts))
		}
		if parts[1].flags != 0x80 || !strings.Contains(parts[1].body, "grpc-status: 0\r\n") || !strings.Contains(parts[1].body, "x-after-bin: AP8\r\n") {
			t.Errorf("the trailer is %q", parts[1])
		}
	}
	a := s.do("POST", s.url+"UnaryCall", wrap(0, ""), "Content-Type", "application/grpc-web")
	parts := unwrap(t, a.body)
	if len(parts) != 1 || !strings.Contains(parts[0].body, "grpc-status: 9\r\ngrpc-message: n%C3%A4h: 100%25 <b>%0A\r\ngrpc-status-details-bin: ") {
		t.Errorf("%q", parts)
	}
	a = s.do("POST", s.url+"UnaryCall", "!!!!", "Content-Type", text)
	if parts := unwrap(t, decodeText(t, a.body)); len(parts) != 1 || !strings.Contains(parts[0].body, "grpc-status: 13") {
		t.Errorf("%q", parts)
	}
}

// decodeText decodes base64 that has padding where a piece ends.
func decodeText(t testing.TB, s string) string {
	t.Helper()
	var b []byte
	for ; len(s) >= 4; s = s[4:] {
		var err error
		if b, err = base64.StdEncoding.AppendDecode(b, []byte(s[:4])); err != nil {
			t.Fatal(err)
		}
	}
	if s != "" {
		t.Fatalf("%q is left", s)
	}
	return string(b)
}

func TestMessagesAreCompressedAsTheClientAsks(t *testing.T) {
	s := start(t, &service{})
	big := `{"payload":{"body":"` + strings.Repeat("AAAA", 1000) + `"}}`
	for _, c := range []struct{ accept, want string }{{"", "gzip"}, {"br, gzip;q=0.5", "gzip"}, {"br", ""}, {"gzip;q=0", ""}} {
		header := []string{"Content-Encoding", "gzip"}
		if c.accept != "" {
			header = append(header, "Accept-Encoding", c.accept)
		}
		a := s.post("UnaryCall", squeeze(t, big), header...)
		got := a.body
		if a.header.Get("Content-Encoding") == "gzip" {
			z, err := gzip.NewReader(strings.NewReader(got))
			if err != nil {
				t.Fatal(err)
			}
			b, _ := io.ReadAll(z)
			got = string(b)
		}
		if a.code != 200 || a.header.Get("Content-Encoding") != c.want && c.accept != "" || got != big {
			t.Errorf("accepting %q: %d, %v, %d bytes", c.accept, a.code, a.header, len(got))
		}
	}
	s.post("UnaryCall", "", "Content-Encoding", "gzip").want(t, 400, "nothing was sent")
	s.post("UnaryCall", "{}", "Content-Encoding", "gzip").want(t, 500, "failed to decompress")
	s.post("UnaryCall", "{}", "Content-Encoding", "snappy").want(t, 501, "use one of: gzip")
	a := s.do("POST", s.url+"StreamingInputCall", wrap(1, squeeze(t, big)), "Content-Type", "application/connect+json", "Connect-Content-Encoding", "gzip")
	if parts := unwrap(t, a.body); len(parts) != 2 || parts[0].flags != 1 || a.header.Get("Connect-Content-Encoding") != "gzip" {
		t.Errorf("%q, %v", parts, a.header)
	}
}

func TestOnlyMethodsWithoutSideEffectsAreGot(t *testing.T) {
	s := start(t, &service{})
	a := s.do("GET", s.url+"UnaryCall?encoding=json&message="+url.QueryEscape("{}"), "")
	if a.want(t, 405, "this is a gRPC server"); a.header.Get("Allow") != "POST" {
		t.Errorf("%v", a.header)
	}
	// EmptyCall's level is not NO_SIDE_EFFECTS either, nor is that of an unknown method.
	s.do("GET", s.url+"EmptyCall?encoding=json&message={}", "").want(t, 405, "")
	s.do("GET", s.url+"NoSuch?encoding=json&message={}", "").want(t, 404, "")
	s.do("PUT", s.url+"NoSuch", "").want(t, 405, "")
}

func TestContentTypesThatAreNotOursReachNoHandler(t *testing.T) {
	s := start(t, &service{unary: func(context.Context, *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		t.Error("a handler was called")
		return nil, nil
	}})
	for _, kind := range []string{"", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/json; charset=latin1", "application/grpc", "application/grpc+json", "application/unheardof", "application/connect+json", "application/", "json", "application/json; =", "application/grpc-web+unheardof"} {
		a := s.do("POST", s.url+"UnaryCall", "{}", "Content-Type", kind)
		if a.want(t, 415, "this is a gRPC server"); !strings.Contains(a.header.Get("Accept-Post"), "application/json") {
			t.Errorf("%s: %v", kind, a.header)
		}
	}
}

func TestVersionsAndTimeoutsThatCannotBeReadAreRefused(t *testing.T) {
	s := start(t, &service{})
	s.post("UnaryCall", "{}", "Connect-Protocol-Version", "1").want(t, 200, "")
	s.post("UnaryCall", "{}", "Connect-Protocol-Version", "2").want(t, 400, "not 1")
	for _, v := range []string{"x", "-1", "12345678901", "1.5"} {
		s.post("UnaryCall", "{}", "Connect-Timeout-Ms", v).want(t, 400, "at most 10 digits")
	}
	s.post("UnaryCall", "{}", "Connect-Timeout-Ms", "9999999999").want(t, 200, "")
	for v, want := range map[string]string{"99S": "grpc-status: 0", "99999999H": "grpc-status: 0", "1": "grpc-status: 3", "x": "grpc-status: 3", "123456789S": "grpc-status: 3"} {
		a := s.do("POST", s.url+"UnaryCall", wrap(0, ""), "Content-Type", "application/grpc-web", "Grpc-Timeout", v)
		if !strings.Contains(a.body, want) {
			t.Errorf("%s: %q", v, a.body)
		}
	}
}

func TestTheFaceCanBeTurnedOff(t *testing.T) {
	s := start(t, &service{}, nearcall.OtherClients(nearcall.GRPCClients))
	s.post("UnaryCall", "{}").want(t, 505, "this is a nearcall server")
}

func unmarshal(b string, m proto.Message) error { return proto.Unmarshal([]byte(b), m) }

// TestAMethodsNameIsNotDecoded: a proxy that knows paths as they are sent would let it pass.
func TestAMethodsNameIsNotDecoded(t *testing.T) {
	called := make(chan string, 10)
	s := start(t, &service{}, nearcall.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
		name, _ := grpc.MethodFromServerStream(s)
		called <- name
		return status.Error(codes.NotFound, "unknown")
	}))
	for _, name := range []string{
		"/grpc.testing.TestService%2FUnaryCall", "/grpc.testing.TestService%2fUnaryCall", "/grpc.testing%2ETestService/UnaryCall",
		path + "Unary%43all", path + "UnaryCall%20", path + "%55naryCall", path + "UnaryCall%00", "/%67rpc.testing.TestService/UnaryCall",
		"//grpc.testing.TestService/UnaryCall", "/x/.." + path + "UnaryCall", path + "UnaryCall;a=b", path + "UnaryCall%3Fa",
	} {
		for _, contentType := range []string{"application/json", "application/grpc-web+json"} {
			body := map[string]string{"application/json": "{}", "application/grpc-web+json": wrap(0, "{}")}[contentType]
			text := strings.Replace(head("UnaryCall", fmt.Sprintf("Content-Length: %d", len(body))), path+"UnaryCall", name, 1)
			a := s.shout(strings.Replace(text, "application/json", contentType, 1) + body)
			select {
			case got := <-called:
				if got != name {
					t.Errorf("%s becomes %s", name, got)
				}
			default:
				if strings.Count(name, "/") > 1 || !strings.Contains(a.body, "malformed method name") {
					t.Errorf("%s is answered with %d, %q", name, a.code, a.body)
				}
			}
		}
		if a := s.shout("GET " + name + "?encoding=json&message=%7B%7D HTTP/1.1\r\nHost: localhost\r\n\r\n"); a.code != 404 {
			t.Errorf("GET %s is answered with %d, %q", name, a.code, a.body)
		}
	}
	// A query is not a part of the name, nor is the authority.
	s.shout(strings.Replace(head("UnaryCall", "Content-Length: 2"), "UnaryCall ", "UnaryCall?a=b ", 1)+"{}").want(t, 200, "{}")
	s.shout(strings.Replace(head("UnaryCall", "Content-Length: 2"), path, "http://localhost"+path, 1)+"{}").want(t, 200, "{}")
}
