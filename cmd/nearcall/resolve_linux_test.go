package main

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
	"google.golang.org/grpc"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/testing/needs"
)

// nameServer starts a DNS server that knows orders.test and its service config, and returns its address.
func nameServer(t *testing.T, config string, ips ...string) string {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() {
		_ = conn.Close()
		<-done
	})
	go func() {
		defer close(done)
		buf := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(buf[:n]) != nil || len(m.Questions) != 1 {
				continue
			}
			m.Response, m.Additionals = true, nil
			q := m.Questions[0]
			add := func(body dnsmessage.ResourceBody) {
				head := dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: 1}
				m.Answers = append(m.Answers, dnsmessage.Resource{Header: head, Body: body})
			}
			switch name := q.Name.String(); {
			case name == "_grpc_config.orders.test." && q.Type == dnsmessage.TypeTXT && config != "":
				add(&dnsmessage.TXTResource{TXT: []string{"grpc_config=" + config}})
			case name == "broken.test.":
				m.RCode = dnsmessage.RCodeServerFailure
			case name != "orders.test.":
				m.RCode = dnsmessage.RCodeNameError
			case q.Type == dnsmessage.TypeA:
				for _, ip := range ips {
					add(&dnsmessage.AResource{A: [4]byte(net.ParseIP(ip).To4())})
				}
			}
			if answer, err := m.Pack(); err == nil {
				_, _ = conn.WriteTo(answer, from)
			}
		}
	}()
	return conn.LocalAddr().String()
}

// resolved runs nearcall resolve -json in another process, because in the servers' own the paths would
// be in process.
func resolved(t *testing.T, code int, args ...string) (r resolution, stderr string) {
	t.Helper()
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	exit, stderr := runProcess(t, out, append([]string{"resolve", "-json"}, args...)...)
	got := exitOK
	if exit != nil {
		got = exit.ExitCode()
	}
	if got != code {
		t.Errorf("%q: exit code %d, want %d; stderr %q", args, got, code, stderr)
	}
	text, err := os.ReadFile(out.Name())
	if err != nil {
		t.Fatal(err)
	}
	if len(text) > 0 {
		if err := json.Unmarshal(text, &r); err != nil {
			t.Errorf("%q prints %q: %v", args, text, err)
		}
	}
	return r, stderr
}

// nearest is the path that clients of another process take to a port of this host.
func nearest() string {
	if runtime.GOOS == "linux" {
		return "shm"
	}
	return "tcp"
}

func TestResolveByDNS(t *testing.T) {
	own := strings.TrimPrefix(onOne(t), "tcp:")
	_, port, _ := net.SplitHostPort(own)
	lis, err := net.Listen("tcp", "127.0.0.2:"+port)
	if err != nil {
		t.Skip("this system has no second address of the loopback: ", err)
	}
	far := grpc.NewServer()
	withShop(far)
	serve(t, far, lis)
	const config = `[{"serviceConfig":{"loadBalancingConfig":[{"round_robin":{}}]}}]`
	dns := nameServer(t, config, "127.0.0.1", "127.0.0.2", "127.0.0.3")
	r, stderr := resolved(t, exitOK, "-plaintext", "dns://"+dns+"/orders.test:"+port)
	if stderr != "" || r.Resolver != "dns" || len(r.Endpoints) != 3 {
		t.Fatalf("stderr %q, result %+v", stderr, r)
	}
	for i, want := range []endpoint{
		{Address: "127.0.0.1:" + port, Speaks: "nearcall", Path: nearest()},
		{Address: "127.0.0.2:" + port, Speaks: "gRPC", Path: "tcp", NotNearer: "the server speaks only gRPC, over HTTP/2"},
		{Address: "127.0.0.3:" + port},
	} {
		got := r.Endpoints[i]
		want.Number = i
		if i == 2 && strings.Contains(got.Error, "refused") {
			got.Error = ""
		}
		if got != want {
			t.Errorf("endpoint %d is %+v, want %+v", i, got, want)
		}
	}
	if !strings.Contains(r.Config, `"round_robin"`) || r.ConfigError != "" {
		t.Errorf("the service config is %q, error %q", r.Config, r.ConfigError)
	}
	bad := nameServer(t, `[{"serviceConfig":{"loadBalancingConfig":[{"no_such_policy":{}}]}}]`, "127.0.0.1")
	if r, _ := resolved(t, exitOK, "-plaintext", "dns://"+bad+"/orders.test:"+port); r.ConfigError == "" || r.Config == "" {
		t.Errorf("the error of the service config is missing: %+v", r)
	}
	fails(t, exitFailed, "has returned no addresses", "resolve", "-plaintext", "dns://"+dns+"/unknown.test:1")
	fails(t, exitFailed, "broken.test", "resolve", "-plaintext", "dns://"+dns+"/broken.test:1")
}

func TestResolvePrintsATable(t *testing.T) {
	target := strings.TrimPrefix(onOne(t), "tcp:")
	got := succeeds(t, "resolve", "passthrough:///"+target)
	lines := strings.Split(got, "\n")
	if len(lines) != 4 || !strings.HasPrefix(lines[0], "address") || strings.Join(strings.Fields(lines[2]), " ") != target+" nearcall - inproc" {
		if runtime.GOOS == "linux" { // other systems have nothing nearer
			t.Errorf("it prints\n%s", got)
		}
	}
	code, stdout, stderr := nearcallCommand(t, "resolve", nobody(t))
	if code != exitFailed || !strings.Contains(stderr, "no endpoint can be reached") || !strings.Contains(stdout, "refused") {
		t.Errorf("exit code %d, stdout %q, stderr %q", code, stdout, stderr)
	}
}

// nobody returns a HOST:PORT where nothing listens.
func nobody(t *testing.T) string {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = lis.Close()
	return lis.Addr().String()
}

func TestResolveKnowsThePath(t *testing.T) {
	far := serveFar(t, withShop)
	web, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	site := &http.Server{Handler: http.NotFoundHandler()}
	ended := make(chan error, 1)
	go func() { ended <- site.Serve(web) }()
	defer func() {
		_ = site.Close()
		<-ended
	}()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	own := onOne(t)
	type check struct {
		args []string
		want endpoint // its Error is a part of the error
		why  string   // a part of NotNearer
	}
	checks := []check{
		{[]string{strings.TrimPrefix(own, "tcp:")}, endpoint{Speaks: "nearcall", Path: nearest()}, ""},
		{[]string{own}, endpoint{Speaks: "nearcall", Path: "tcp"}, "stay on TCP"},
		{[]string{far}, endpoint{Speaks: "gRPC", Path: "tcp"}, "only gRPC"},
		{[]string{"passthrough:///" + far}, endpoint{Speaks: "gRPC", Path: "tcp"}, "only gRPC"},
		{[]string{nobody(t)}, endpoint{Error: "refused"}, ""},
		{[]string{web.Addr().String()}, endpoint{Error: "HTTP/1"}, ""},
		{[]string{"-max-time", "50ms", silent.Addr().String()}, endpoint{Error: "deadline exceeded"}, ""},
	}
	if runtime.GOOS == "linux" {
		closed := serveNear(t, "tcp:127.0.0.1:0", withShop, nearcall.DisableSharedMemory())
		checks = append(checks, check{[]string{strings.TrimPrefix(closed, "tcp:")}, endpoint{Speaks: "nearcall", Path: "tcp"}, "DisableSharedMemory"})
	}
	if needs.HasUnixSockets() {
		path := "unix"
		if runtime.GOOS == "linux" {
			path = "shm"
		}
		socket := serveNear(t, "unix:"+filepath.Join(t.TempDir(), "s"), withShop)
		stays := serveNear(t, "unix:"+filepath.Join(t.TempDir(), "s"), withShop, nearcall.DisableSharedMemory())
		checks = append(checks, check{[]string{socket}, endpoint{Speaks: "nearcall", Path: path}, ""},
			check{[]string{"passthrough:///" + socket}, endpoint{Speaks: "nearcall", Path: path}, ""},
			check{[]string{stays}, endpoint{Speaks: "nearcall", Path: "unix"}, "DisableSharedMemory"},
			check{[]string{"unix:/nowhere/s"}, endpoint{Error: "no such file"}, ""})
	}
	for _, c := range checks {
		code := exitOK
		if c.want.Error != "" {
			code = exitFailed
		}
		r, _ := resolved(t, code, c.args...)
		if len(r.Endpoints) != 1 {
			t.Errorf("%q: %+v", c.args, r)
			continue
		}
		got := r.Endpoints[0]
		if !strings.Contains(got.Error, c.want.Error) || !strings.Contains(got.NotNearer, c.why) ||
			(got.NotNearer == "") != (c.why == "") && nearest() == "shm" || fmt.Sprint(got.Speaks, got.Path, got.TLS) != fmt.Sprint(c.want.Speaks, c.want.Path, c.want.TLS) {
			t.Errorf("%q: %+v, want %+v because of %q", c.args, got, c.want, c.why)
		}
	}
}

func TestResolveOverTLS(t *testing.T) {
	cert, _, pair := certificate(t)
	own := serveNear(t, "tcp:127.0.0.1:0", withShop, nearcall.Creds(nearcall.NewTLS(&tls.Config{Certificates: []tls.Certificate{pair}})))
	own = strings.TrimPrefix(own, "tcp:")
	r, _ := resolved(t, exitOK, "-cacert", cert, "-servername", "shop.example", own)
	if len(r.Endpoints) != 1 || r.Endpoints[0] != (endpoint{Address: own, Speaks: "nearcall", TLS: "TLS 1.3", Path: nearest()}) {
		t.Errorf("the result is %+v", r)
	}
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"-cacert", cert, "-servername", "other.example"}, "-servername expects another name"},
		{[]string{"-cacert", cert}, "-servername expects a name"},
		{[]string{"-servername", "shop.example"}, "-cacert trusts those of a file"},
		{nil, "use -cacert, -servername or -insecure"},
	} {
		r, stderr := resolved(t, exitFailed, append(c.args, own)...)
		if len(r.Endpoints) != 1 || !strings.Contains(r.Endpoints[0].Error, c.says) || !strings.Contains(stderr, "no endpoint can be reached") {
			t.Errorf("%q: %+v, stderr %q", c.args, r, stderr)
		}
	}
}

func TestResolveRefusesTargets(t *testing.T) {
	for target, says := range map[string]string{
		"":                   "is empty",
		"tcp:localhost":      "write tcp:HOST:PORT",
		"inproc:x":           "exist only within",
		"http://localhost:1": "is a URL",
		"grpc:localhost:1":   "always go to grpc-go",
		"xds:///orders":      "no resolver for xds:",
		"dns:///%zz":         "malformed target",
	} {
		fails(t, exitUsage, says, "resolve", target)
	}
	fails(t, exitFailed, "the resolver of", "resolve", "-plaintext", "dns:///:")
}

// TestCallByTargetsOfGRPC checks that call takes targets of grpc-go.
func TestCallByTargetsOfGRPC(t *testing.T) {
	own := strings.TrimPrefix(onOne(t), "tcp:")
	_, port, _ := net.SplitHostPort(own)
	dns := nameServer(t, "", "127.0.0.1")
	for _, target := range []string{own, "dns:///" + own, "passthrough:///" + own, "dns://" + dns + "/orders.test:" + port, "dns:///" + serveFar(t, withShop)} {
		got := succeeds(t, "call", "-plaintext", target, orders+"/Place", `{"item": "tea"}`)
		if !strings.Contains(got, `"item": "tea"`) && !strings.Contains(got, `"item":"tea"`) {
			t.Errorf("%s: the reply is %q", target, got)
		}
	}
	cert, _, pair := certificate(t)
	secured := serveNear(t, "tcp:127.0.0.1:0", withShop, nearcall.Creds(nearcall.NewTLS(&tls.Config{Certificates: []tls.Certificate{pair}})))
	_, port, _ = net.SplitHostPort(strings.TrimPrefix(secured, "tcp:"))
	if got := succeeds(t, "list", "-cacert", cert, "-servername", "shop.example", "dns://"+dns+"/orders.test:"+port); !strings.Contains(got, orders) {
		t.Errorf("it lists %q", got)
	}
	fails(t, 64+14, "; use -cacert, -servername or -insecure\n", "list", "-plaintext", "dns://"+dns+"/orders.test:"+port)
}
