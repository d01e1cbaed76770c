package websocket

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"testing"
)

// TestKeepMakesCopiesOfARequest that are like it, and may be changed.
func TestKeepMakesCopiesOfARequest(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	header := http.Header{
		"Origin": {"https://shop.example"}, "X-Many": {"a", "", "c"}, "X-Empty": {""}, "X-Long": {strings.Repeat("x", 100_000)},
		"x-other-case": {"\x00\xff\r\n"}, "Cookie": {"a=b"}, "Authorization": {"Bearer c"},
	}
	for i := range 2_000 {
		header[fmt.Sprintf("X-%d", i)] = []string{fmt.Sprint(i)}
	}
	r := (&http.Request{
		Method: "GET", Host: "shop.example", RemoteAddr: "192.0.2.1:80", RequestURI: "/calls?a=b", Proto: "HTTP/1.1",
		URL: &url.URL{Path: "/calls", RawQuery: "a=b"}, TLS: new(tls.ConnectionState),
		Header: header.Clone(), Body: io.NopCloser(strings.NewReader("body")),
	}).WithContext(ctx)
	cancel()
	for _, without := range [][]string{nil, {"Cookie", "Authorization"}} {
		kept := Keep(r, without...)
		want := header.Clone()
		for _, name := range without {
			want.Del(name)
		}
		for range 2 {
			got := kept()
			if !reflect.DeepEqual(got.Header, want) || *got.URL != *r.URL || got.Host != r.Host || got.RemoteAddr != r.RemoteAddr || got.RequestURI != r.RequestURI || got.TLS != r.TLS {
				t.Errorf("without %v: %+v, want the header %v of %+v", without, got, want, r)
			}
			if got.Context().Err() != nil || got.Body != http.NoBody {
				t.Errorf("%v, %v", got.Context().Err(), got.Body)
			}
			got.Header.Set("Origin", "https://other.example")
			got.URL.Path = "/other"
		}
		if !reflect.DeepEqual(r.Header, header) || r.URL.Path != "/calls" {
			t.Errorf("the request is now %+v", r)
		}
	}
	if got := Keep(&http.Request{URL: new(url.URL)})(); len(got.Header) > 0 || got.Header == nil {
		t.Errorf("%v", got.Header)
	}
}
