package clients

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/improbable-eng/grpc-web/go/grpcweb"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/examples/orders/orderspb"
)

var update = flag.Bool("update", false, "write the table of docs/semantics.md anew")

const (
	semantics  = "../../docs/semantics.md"
	tableBegin = "<!-- clients: begin -->\n"
	tableEnd   = "<!-- clients: end -->\n"
)

// What clients and servers agree on: a version of HTTP, or nearcall's own protocol.
const (
	one = "1.1"
	two = "2"
	own = "own"
)

// A column is a way to serve.
type column struct {
	Title   string
	TLS     bool
	Mutual  bool                                               // the client needs a certificate
	Creds   func(*tls.Config) credentials.TransportCredentials // of the server; nil for none
	Serve   func(*nearcall.Server, net.Listener, *tls.Config)  // until the listener is closed
	Handler bool                                               // the server is an http.Handler
}

var columns = []column{
	{Title: "`Serve`", Serve: serveListener},
	{Title: "`Serve`, `credentials.NewTLS`", TLS: true, Creds: credentials.NewTLS, Serve: serveListener},
	{Title: "`Serve`, `nearcall.NewTLS`", TLS: true, Creds: nearcall.NewTLS, Serve: serveListener},
	{Title: "`Serve`, mutual TLS", TLS: true, Mutual: true, Creds: nearcall.NewTLS, Serve: serveListener},
	{Title: "`ServeConn`", Serve: func(srv *nearcall.Server, lis net.Listener, _ *tls.Config) {
		serveConns(lis, func(conn net.Conn) { _ = srv.ServeConn(conn) })
	}},
	{Title: "`http.Server`", Handler: true, Serve: func(srv *nearcall.Server, lis net.Listener, _ *tls.Config) {
		serveHTTP(mounted(srv), lis, nil)
	}},
	{Title: "`http.Server`, TLS", Handler: true, TLS: true, Serve: func(srv *nearcall.Server, lis net.Listener, config *tls.Config) {
		serveHTTP(mounted(srv), lis, config)
	}},
	{Title: "`http2.Server.ServeConn`", Handler: true, Serve: func(srv *nearcall.Server, lis net.Listener, _ *tls.Config) {
		serveConns(lis, func(conn net.Conn) {
			//lint:ignore SA1019 programs that moved over from grpc-go call it
			new(http2.Server).ServeConn(conn, &http2.ServeConnOpts{Handler: srv, BaseConfig: silent})
		})
	}},
	{Title: "`grpcweb.WrapHandler`", Handler: true, Serve: func(srv *nearcall.Server, lis net.Listener, _ *tls.Config) {
		serveHTTP(grpcweb.WrapHandler(mounted(srv), grpcweb.WithOriginFunc(func(string) bool { return true })), lis, nil)
	}},
}

// silent logs nothing, although some clients speak another protocol.
var silent = &http.Server{ErrorLog: log.New(io.Discard, "", 0), HTTP2: &http.HTTP2Config{MaxEncoderHeaderTableSize: 1}}

func serveListener(srv *nearcall.Server, lis net.Listener, _ *tls.Config) { _ = srv.Serve(lis) }

// serveConns serves each connection, and returns when all have ended.
func serveConns(lis net.Listener, serve func(net.Conn)) {
	var serving sync.WaitGroup
	defer serving.Wait()
	for {
		conn, err := lis.Accept()
		if err != nil {
			return
		}
		serving.Go(func() { serve(conn) })
	}
}

// mounted returns a handler of all that srv serves, with WebSockets at the path that the client takes.
func mounted(srv *nearcall.Server) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", srv)
	mux.Handle("/calls", srv.WebSockets())
	return mux
}

func serveHTTP(h http.Handler, lis net.Listener, config *tls.Config) {
	srv := &http.Server{Handler: h, Protocols: new(http.Protocols), HTTP2: &http.HTTP2Config{MaxEncoderHeaderTableSize: 1}}
	srv.Protocols.SetHTTP1(true)
	srv.Protocols.SetHTTP2(true)
	srv.Protocols.SetUnencryptedHTTP2(true)
	if config != nil {
		srv.TLSConfig = config.Clone()
		_ = srv.ServeTLS(lis, "", "")
	} else {
		_ = srv.Serve(lis)
	}
	_ = srv.Close() // ends connections that clients keep
}

// A row is a client and one of its protocols.
type row struct {
	Client, Protocol string
	Calls            string
	Versions         []string // that the client can be told to use
	Browser          bool     // chooses the version itself
}

// versions returns the versions with which the client calls a column.
func (r row) versions(c column) []string {
	switch {
	case r.Browser && c.TLS && r.Protocol != webSocket:
		return []string{two}
	case r.Browser:
		return []string{one}
	case r.Protocol == nearcallsOwn && c.Handler: // it goes on with gRPC
		return []string{two}
	}
	return r.Versions
}

const (
	connectProtocol = "Connect"
	jsonProtocol    = "Connect, JSON"
	grpcWeb         = "gRPC-Web"
	grpcProtocol    = "gRPC"
	webSocket       = "WebSocket"
	nearcallsOwn    = "nearcall's own, or gRPC"

	unary          = "unary"
	withReflection = "unary, after reflection"
	withServer     = "unary, server stream"
	withBidi       = "unary, server stream, bidi over HTTP/2"
	everything     = "unary, server stream, bidi"
)

// A caller makes the calls of some rows.
type caller struct {
	rows []row
	// call makes the calls of all cells, and sets what they were like.
	call func(t *testing.T, cells []*cell)
}

var callers = []caller{
	{[]row{{"curl", jsonProtocol, unary, []string{one, two}, false}}, each(callCurl)},
	{threeProtocols("connect-go v1", withBidi), each(callConnect1)},
	{threeProtocols("connect-go v2", withBidi), each(callConnect2)},
	{[]row{
		{"buf curl", connectProtocol, withReflection, []string{two}, false},
		{"buf curl", grpcWeb, withReflection, []string{two}, false},
		{"buf curl", grpcProtocol, withReflection, []string{two}, false},
	}, each(callBuf)},
	{append(threeProtocols("connect-node", withBidi), row{"@nearcall/web in Node", webSocket, everything, []string{one}, false}), callNode},
	{[]row{
		{"connect-web in Chromium", connectProtocol, withServer, nil, true},
		{"connect-web in Chromium", grpcWeb, withServer, nil, true},
		{"@nearcall/web in Chromium", webSocket, everything, nil, true},
	}, callNode},
	{[]row{{"grpcio", grpcProtocol, everything, []string{two}, false}}, callPython},
	{[]row{{"grpcurl", grpcProtocol, withReflection, []string{two}, false}}, each(callGrpcurl)},
	{[]row{{"grpc-go", grpcProtocol, everything, []string{two}, false}}, each(callGRPC)},
	{[]row{
		{"nearcall, tcp:", nearcallsOwn, everything, []string{own}, false},
		{"nearcall, ws: or wss:", webSocket, everything, []string{one}, false},
	}, each(callNearcall)},
}

func threeProtocols(client, calls string) []row {
	return []row{
		{client, connectProtocol, calls, []string{one, two}, false},
		{client, grpcWeb, calls, []string{one, two}, false},
		{client, grpcProtocol, everything, []string{two}, false},
	}
}

// Why cells fail.
const (
	onlyH2      = "`credentials.NewTLS` agrees on `h2` alone: use `nearcall.NewTLS`."
	onlyHTTP2   = "`http2.Server` speaks HTTP/2 alone, and browsers speak that only over TLS."
	noUsersCert = "A browser takes certificates from its user, not from a page. The tests give it none."
)

var reasons = []string{onlyH2, noUsersCert, onlyHTTP2}

// why says why the calls of a cell fail. It returns "" if they succeed.
func why(r row, c column, version string) string {
	switch {
	case version == one && c.Title == "`Serve`, `credentials.NewTLS`":
		return onlyH2
	case version == one && c.Title == "`http2.Server.ServeConn`":
		return onlyHTTP2
	case r.Browser && c.Mutual:
		return noUsersCert
	}
	return ""
}

// A cell is what a client does at a server with one version of HTTP.
type cell struct {
	Client, Protocol, Version string
	Address                   string // localhost:PORT
	TLS                       bool
	CA, Cert, Key             string // files; the client's certificate is empty if it needs none

	name, why string
	config    *tls.Config // of the client

	// What the calls were like.
	ALPN string // that the server has seen
	Err  string // of the first call that failed
	Skip string // why there was no call
}

func (c *cell) url(scheme string) string {
	if c.TLS {
		scheme += "s"
	}
	return scheme + "://" + c.Address
}

// each returns a function that calls f for some cells at a time.
func each(f func(context.Context, *testing.T, *cell) (alpn string, err error)) func(*testing.T, []*cell) {
	return func(t *testing.T, cells []*cell) {
		var calls sync.WaitGroup
		free := make(chan struct{}, 4)
		for _, c := range cells {
			free <- struct{}{}
			calls.Go(func() {
				defer func() { <-free }()
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				alpn, err := f(ctx, t, c)
				c.ALPN = alpn
				switch missing, ok := errors.AsType[missing](err); {
				case ok:
					c.Skip = string(missing)
				case err != nil:
					c.Err = err.Error()
				}
			})
		}
		calls.Wait()
	}
}

// missing is what a client lacks on this machine.
type missing string

func (m missing) Error() string { return string(m) }

// TestTableOfClients makes the calls of every cell of the table in docs/semantics.md, and compares
// the table. With -update it writes the table anew.
func TestTableOfClients(t *testing.T) {
	meant(t)
	certFile, keyFile, config := keys(t, t.TempDir())
	cells := make([][]*cell, len(callers))
	skipped := false
	t.Run("cells", func(t *testing.T) {
		for _, col := range columns {
			address := serveColumn(t, col, config)
			for i, caller := range callers {
				for _, r := range caller.rows {
					for _, version := range r.versions(col) {
						c := &cell{
							Client: r.Client, Protocol: r.Protocol, Version: version, Address: address, TLS: col.TLS,
							name: strings.Join([]string{r.Client, r.Protocol, version, col.Title}, ", "), why: why(r, col, version),
						}
						if col.TLS {
							c.CA, c.config = certFile, &tls.Config{RootCAs: config.RootCAs}
						}
						if col.Mutual {
							c.Cert, c.Key, c.config.Certificates = certFile, keyFile, config.Certificates
						}
						cells[i] = append(cells[i], c)
					}
				}
			}
		}
		for i, caller := range callers {
			t.Run(caller.rows[0].Client, func(t *testing.T) {
				t.Parallel()
				caller.call(t, cells[i])
			})
		}
	})
	for _, c := range slices.Concat(cells...) {
		switch {
		case c.Skip != "":
			skipped = true
			t.Logf("%s: not run: %s", c.name, c.Skip)
		case c.Err == "" && c.why != "":
			t.Errorf("%s: the calls succeed, and should not: %s", c.name, c.why)
		case c.Err != "" && c.why == "":
			t.Errorf("%s: %s", c.name, c.Err)
		case c.Err == "" && !agrees(c):
			t.Errorf("%s: the server has agreed on %q", c.name, c.ALPN)
		case c.Err != "":
			t.Logf("%s: %s", c.name, c.Err)
		}
	}
	text, err := os.ReadFile(semantics)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, begins := strings.Cut(string(text), tableBegin)
	got, after, ends := strings.Cut(rest, tableEnd)
	want := table()
	switch {
	case !begins || !ends:
		t.Errorf("%s has no marks of the table", semantics)
	case got == want:
	case !*update:
		t.Errorf("the table of %s is not what the cells say; -update writes it:\n%s", semantics, want)
	case t.Failed() || skipped:
		t.Error("-update needs every cell")
	default:
		if err := os.WriteFile(semantics, []byte(before+tableBegin+want+tableEnd+after), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// agrees reports whether the server has seen the cell's version in the TLS handshake. Some clients
// of HTTP/1.1 offer no protocol there.
func agrees(c *cell) bool {
	switch {
	case !c.TLS:
		return c.ALPN == ""
	case c.Version == one:
		return c.ALPN == "http/1.1" || c.ALPN == ""
	case c.Version == own && c.ALPN == "nearcall/1": // both sides know it
		return true
	}
	return c.ALPN == "h2"
}

// table returns the table, of cells that are as why says. Clients that make the same calls over the
// same versions share a line.
func table() string {
	head, rule := "| client | calls |", "| --- | --- |"
	for _, c := range columns {
		head, rule = head+" "+c.Title+" |", rule+" --- |"
	}
	marks := []string{"¹", "²", "³"}
	var lines []string // without the clients
	clients := make(map[string][]string)
	for _, caller := range callers {
		for _, r := range caller.rows {
			line := r.Calls + " |"
			for _, c := range columns {
				var works, notes []string
				for _, version := range r.versions(c) {
					if reason := why(r, c, version); reason != "" {
						notes = append(notes, marks[slices.Index(reasons, reason)])
					} else {
						works = append(works, version)
					}
				}
				line += " " + strings.TrimSpace(strings.Join(works, ", ")+" "+strings.Join(notes, " ")) + " |"
			}
			if clients[line] == nil {
				lines = append(lines, line)
			}
			if n := len(clients[line]) - 1; n >= 0 && strings.HasPrefix(clients[line][n], r.Client+" (") {
				clients[line][n] = strings.TrimSuffix(clients[line][n], ")") + ", " + r.Protocol + ")"
			} else {
				clients[line] = append(clients[line], r.Client+" ("+r.Protocol+")")
			}
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "\n%s\n%s\n", head, rule)
	for _, line := range lines {
		fmt.Fprintf(&b, "| %s | %s\n", strings.Join(clients[line], "; "), line)
	}
	b.WriteString("\n")
	for i, reason := range reasons {
		fmt.Fprintf(&b, "- %s %s\n", marks[i], reason)
	}
	b.WriteString("\n")
	return b.String()
}

// serveColumn starts a server, and returns its address.
func serveColumn(t *testing.T, col column, config *tls.Config) string {
	config = config.Clone()
	if col.Mutual {
		config.ClientAuth = tls.RequireAndVerifyClientCert
	}
	opts := []nearcall.ServerOption{nearcall.WebOrigins("*"), nearcall.ChainUnaryInterceptor(tellALPN)}
	if col.Creds != nil {
		opts = append(opts, nearcall.Creds(col.Creds(config)))
	}
	srv := newServer(t, false, opts...)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		col.Serve(srv, lis, config)
	}()
	t.Cleanup(func() {
		srv.Stop()
		_ = lis.Close()
		<-served
	})
	return "localhost:" + port(t, lis.Addr().String())
}

// tellALPN is an interceptor that answers with the protocol of the TLS handshake as the item.
func tellALPN(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	reply, err := handler(ctx, req)
	if order, ok := reply.(*orderspb.Order); ok && order != nil {
		order.Item = ""
		if p, ok := peer.FromContext(ctx); ok {
			if info, ok := p.AuthInfo.(credentials.TLSInfo); ok {
				order.Item = info.State.NegotiatedProtocol
			}
		}
	}
	return reply, err
}

// What the clients send, and what the service answers.
var (
	toPlace    = &orderspb.PlaceRequest{Customer: "ann", Item: "tea", Quantity: 1}
	toList     = &orderspb.ListRequest{Customer: "ann"}
	offers     = []*orderspb.Offer{{Cents: 7}, {Cents: 8}}
	placeJSON  = `{"customer":"ann","item":"tea","quantity":1}`
	placePath  = "/" + serviceName + "/Place"
	listPath   = "/" + serviceName + "/List"
	hagglePath = "/" + serviceName + "/Haggle"
)

// placed returns the protocol that the server has answered with.
func placed(order *orderspb.Order) (string, error) {
	if order.GetId() != 1 || order.GetCustomer() != "ann" || order.GetQuantity() != 1 {
		return "", fmt.Errorf("the reply is %v", order)
	}
	return order.GetItem(), nil
}

// callStubs makes all kinds of calls with generated code.
func callStubs(ctx context.Context, conn grpc.ClientConnInterface) (string, error) {
	c := orderspb.NewOrdersClient(conn)
	order, err := c.Place(ctx, toPlace)
	if err != nil {
		return "", err
	}
	alpn, err := placed(order)
	if err != nil {
		return "", err
	}
	orders, err := c.List(ctx, toList)
	if err != nil {
		return "", err
	}
	if err := listed(func() error { _, err := orders.Recv(); return err }); err != nil {
		return "", err
	}
	both, err := c.Haggle(ctx)
	if err != nil {
		return "", err
	}
	return alpn, haggle(both.Send, both.Recv, both.CloseSend)
}

func callGRPC(ctx context.Context, _ *testing.T, c *cell) (string, error) {
	creds := insecure.NewCredentials()
	if c.TLS {
		creds = credentials.NewTLS(c.config)
	}
	conn, err := grpc.NewClient(c.Address, grpc.WithTransportCredentials(creds))
	if err != nil {
		return "", err
	}
	defer conn.Close()
	return callStubs(ctx, conn)
}

func callNearcall(ctx context.Context, _ *testing.T, c *cell) (string, error) {
	target := "tcp:" + c.Address
	if c.Version == one {
		target = c.url("ws") + "/calls"
	}
	var opts []nearcall.DialOption
	if c.TLS {
		opts = append(opts, nearcall.WithTransportCredentials(nearcall.NewTLS(c.config)))
	}
	conn, err := nearcall.NewClient(target, opts...)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	return callStubs(ctx, conn)
}

// output returns the standard output of a command.
func output(cmd *exec.Cmd) ([]byte, error) {
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%w: %s%s", err, out, &stderr)
	}
	return out, nil
}

// inJSON returns the protocol that the server has answered with.
func inJSON(reply []byte) (string, error) {
	var order struct {
		Customer, Item string
		Quantity       int32
		ID             json.Number
	}
	d := json.NewDecoder(bytes.NewReader(reply))
	if err := d.Decode(&order); err != nil {
		return "", fmt.Errorf("%w: %s", err, reply)
	}
	id, _ := order.ID.Int64()
	return placed(&orderspb.Order{Id: id, Customer: order.Customer, Item: order.Item, Quantity: order.Quantity})
}

func callCurl(ctx context.Context, _ *testing.T, c *cell) (string, error) {
	curl, err := exec.LookPath("curl")
	if err != nil {
		return "", missing(err.Error())
	}
	args := []string{"-sS", "--fail-with-body", "-w", `%{stderr}%{http_version}`, "-H", "Content-Type: application/json", "-d", placeJSON}
	switch {
	case c.Version == one:
		args = append(args, "--http1.1")
	case c.TLS:
		args = append(args, "--http2")
	default:
		args = append(args, "--http2-prior-knowledge")
	}
	if c.TLS {
		args = append(args, "--cacert", c.CA)
	}
	if c.Cert != "" {
		args = append(args, "--cert", c.Cert, "--key", c.Key)
	}
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, curl, append(args, c.url("http")+placePath)...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%w: %s%s", err, out, &stderr)
	}
	if stderr.String() != c.Version {
		return "", fmt.Errorf("curl has used HTTP/%s", &stderr)
	}
	return inJSON(out)
}

func callBuf(ctx context.Context, _ *testing.T, c *cell) (string, error) {
	found, err := filepath.Glob("../../web/node_modules/@bufbuild/buf-*/bin/buf*")
	found = slices.DeleteFunc(found, func(name string) bool { return strings.TrimSuffix(filepath.Base(name), ".exe") != "buf" })
	if err != nil || len(found) == 0 {
		return "", missing("web/node_modules has no buf: make web-tools")
	}
	protocol := map[string]string{connectProtocol: "connect", grpcWeb: "grpcweb", grpcProtocol: "grpc"}[c.Protocol]
	args := []string{"curl", "--protocol", protocol, "-d", placeJSON}
	if c.TLS {
		args = append(args, "--cacert", c.CA)
	}
	if c.Cert != "" {
		args = append(args, "--cert", c.Cert, "--key", c.Key)
	}
	out, err := output(exec.CommandContext(ctx, found[0], append(args, c.url("http")+placePath)...))
	if err != nil {
		return "", err
	}
	return inJSON(out)
}

var grpcurl = sync.OnceValues(func() (string, error) {
	out, err := output(exec.Command("go", "tool", "-n", "grpcurl"))
	return strings.TrimSpace(string(out)), err
})

func callGrpcurl(ctx context.Context, _ *testing.T, c *cell) (string, error) {
	program, err := grpcurl()
	if err != nil {
		return "", err
	}
	args := []string{"-plaintext"}
	if c.TLS {
		args = []string{"-cacert", c.CA}
	}
	if c.Cert != "" {
		args = append(args, "-cert", c.Cert, "-key", c.Key)
	}
	out, err := output(exec.CommandContext(ctx, program, append(args, "-d", placeJSON, c.Address, serviceName+"/Place")...))
	if err != nil {
		return "", err
	}
	return inJSON(out)
}

// callWith makes the calls of cells with one process, which reads them from its standard input and
// writes what they were like.
func callWith(t *testing.T, cmd *exec.Cmd, cells []*cell) {
	files, err := proto.Marshal(&descriptorpb.FileDescriptorSet{File: []*descriptorpb.FileDescriptorProto{protodesc.ToFileDescriptorProto(orderspb.File_examples_orders_orderspb_orders_proto)}})
	if err != nil {
		t.Fatal(err)
	}
	in, err := json.Marshal(struct {
		Files []byte // a FileDescriptorSet of the service
		Cells []*cell
	}{files, cells})
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdin = bytes.NewReader(in)
	out, err := output(cmd)
	if err != nil {
		t.Fatal(err)
	}
	var done []cell
	if err := json.Unmarshal(out, &done); err != nil || len(done) != len(cells) {
		t.Fatalf("%v: %s", err, out)
	}
	for i, c := range cells {
		c.ALPN, c.Err, c.Skip = done[i].ALPN, done[i].Err, done[i].Skip
	}
}

func callNode(t *testing.T, cells []*cell) {
	node := "../../web/node_modules/.bin/node"
	if _, err := os.Stat(node); err != nil {
		skip(cells, "web/node_modules is missing: make web-tools")
		return
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	callWith(t, exec.CommandContext(ctx, node, "../../web/test/table.ts"), cells)
}

func callPython(t *testing.T, cells []*cell) {
	python := os.Getenv(pythonVariable)
	if python == "" {
		skip(cells, noPython)
		return
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, python, "-B", "table_grpcio.py")
	cmd.Env = append(cmd.Environ(), "PYTHONPATH="+stubs(ctx, t, python))
	callWith(t, cmd, cells)
}

func skip(cells []*cell, why string) {
	for _, c := range cells {
		c.Skip = why
	}
}
