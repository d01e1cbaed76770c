package web

import (
	"bufio"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/message"
	"github.com/nearcall/nearcall/internal/testing/transporttest"
)

// An echo is an acceptor that answers each call with its message.
type echo struct{ transporttest.Accepter }

func (echo) HandleStream(s link.Stream, o *link.CallHeader) error {
	go func() {
		var got []byte
		f := &link.Frame{Sink: message.Sink{Dst: &got, Codec: raw{}, Limit: 1000}}
		if err := s.Recv(f); err != nil {
			s.Abort(err)
			return
		}
		_ = s.Send(&link.Frame{Msg: message.Live(got, raw{}), HasMsg: true, End: &link.End{}})
	}()
	return nil
}

func (raw) Sized(v any) (message.Message, error) { return message.EncodedBytes(v.([]byte)), nil }

// TestAGetHasItsMessageInTheURL sends the queries that the protocol of Connect allows, and
// some that it does not.
func TestAGetHasItsMessageInTheURL(t *testing.T) {
	s := serverOf(t, Options{})
	s.opts.Method = func(string) link.Method { return link.Method{Known: true, NoSideEffects: true} }
	s.opts.Codec = func(name string) bool { return name == "json" || name == "proto" }
	client, session := handOver(t, s, "", echo{})
	defer session.Close(io.EOF)
	in := bufio.NewReader(client)
	for query, want := range map[string]string{
		"encoding=json&message=%7B%7D":                           "200 {}",
		"message=a+b&encoding=json&connect=v1&other=1":           "200 a b",
		"base64=1&encoding=proto&message=_-8":                    "200 \xff\xef",
		"base64=1&encoding=proto&message=YQ%3D%3D":               "200 a",
		"base64=0&encoding=json&message=YQ":                      "200 YQ",
		"encoding=json&message=":                                 "200 ",
		"compression=identity&encoding=json&message=x":           "200 x",
		"compression=br&encoding=json&message=x":                 "501 {",
		"encoding=json":                                          "400 {",
		"message=x":                                              "400 {",
		"encoding=json&message=%zz":                              "400 {",
		"encoding=json&message=x&connect=v2":                     "400 {",
		"encoding=proto&base64=1&message=!":                      "400 {",
		"encoding=xml&message=x":                                 "415 the encoding",
		"encoding=json&message=" + strings.Repeat("x", 1001):     "503 {",
		"encoding=json&message=x&Connect-Timeout-Ms=not-a-query": "200 x",
	} {
		if _, err := io.WriteString(client, "GET /a/b?"+query+" HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(resp.Body)
		_, name, _ := strings.Cut(query, "encoding=")
		name, _, _ = strings.Cut(name, "&")
		if got := resp.Status[:4] + string(b); !strings.HasPrefix(got, want) || resp.StatusCode == 200 && resp.Header.Get("Content-Type") != "application/"+name {
			t.Errorf("%.80s: %q, %v; want %q", query, got, resp.Header, want)
		}
	}
	if _, err := io.WriteString(client, "GET /a/b?encoding=json&message=x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\ny"); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(in, nil)
	if err != nil || resp.StatusCode != http.StatusUnsupportedMediaType || !resp.Close {
		t.Errorf("with a body: %v, %v", resp, err)
	}
}
