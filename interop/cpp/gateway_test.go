package cpptest

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestGateway runs the example: HTTP and JSON become calls of the server in Go.
func TestGateway(t *testing.T) {
	gateway := optionalProgram(t, "../examples/gateway", "Boost.Beast")
	url := startProgram(t, gateway, "0", startFeed(t))
	client := &http.Client{Timeout: 30 * time.Second}
	post := func(t *testing.T, path, body string) *http.Response {
		r, err := client.Post(url+path, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = r.Body.Close() })
		return r
	}
	type tick struct {
		Symbol, Number string
		Price          float64
	}

	for _, c := range []struct {
		path, body string
		code       int
		text       string
	}{
		{"/feed.Feed/Last", `{"symbol": "ACME"}`, 200, `"symbol":"ACME"`},
		{"/feed.Feed/Last", `{}`, 400, `{"code": 3, "message": "a symbol is needed"}`},
		{"/feed.Feed/Last", `{"symbol": 7`, 400, `"code": 3`},
		{"/feed.Feed/Last", `{"none": "such"}`, 400, `"code": 3`},
		{"/feed.Feed/Watch", `{}`, 400, `{"code": 3, "message": "a symbol is needed"}`},
		{"/feed.Feed/None", `{}`, 501, `{"code": 12, "message": "there is no such method"}`},
	} {
		r := post(t, c.path, c.body)
		text, err := io.ReadAll(r.Body)
		if err != nil || r.StatusCode != c.code || !strings.Contains(string(text), c.text) {
			t.Errorf("%s %s: %s, %v: %s", c.path, c.body, r.Status, err, text)
		}
	}
	r, err := client.Get(url + "/feed.Feed/Last")
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Body.Close(); err != nil || r.StatusCode != http.StatusNotImplemented {
		t.Errorf("GET: %s, %v", r.Status, err)
	}

	// A stream, while the gateway answers others. Its client leaves in the middle.
	watch := post(t, "/feed.Feed/Watch", `{"symbol": "ACME", "rate": 1000}`)
	lines := json.NewDecoder(bufio.NewReader(watch.Body))
	for n := 1; n <= 50; n++ {
		var got tick
		if err := lines.Decode(&got); err != nil || got.Symbol != "ACME" || got.Price < 90 {
			t.Fatalf("tick %d is %+v: %v", n, got, err)
		}
		if n == 25 {
			if r := post(t, "/feed.Feed/Last", `{"symbol": "X"}`); r.StatusCode != http.StatusOK {
				t.Errorf("during a stream: %s", r.Status)
			}
		}
	}
	if err := watch.Body.Close(); err != nil {
		t.Error(err)
	}
	if r := post(t, "/feed.Feed/Last", `{"symbol": "X"}`); r.StatusCode != http.StatusOK {
		t.Errorf("after a stream: %s", r.Status)
	}
	// One is open when the gateway is stopped.
	post(t, "/feed.Feed/Watch", `{"symbol": "ACME", "rate": 1}`)
}
