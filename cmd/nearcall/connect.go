package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"flag"
	"fmt"
	"math"
	"net"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/cmd/nearcall/internal/schema"
)

// connFlags are the flags that say how to connect. Their names are those of curl and grpcurl.
type connFlags struct {
	headers                          headers
	maxTime                          seconds
	cacert, cert, key                string
	serverName, authority, userAgent string
	skipVerify, plaintext            bool
	maxSize                          int

	protos, sets, importPaths pathList
}

func newConnFlags(flags *flag.FlagSet) *connFlags {
	f := &connFlags{headers: make(headers)}
	flags.Var(f.headers, "H", "send this `'name: value'` as metadata; can be repeated; values of names that end in -bin are base64")
	flags.Var(&f.maxTime, "max-time", "give up after this `time`: seconds, or a time such as 500ms")
	f.addTLS(flags)
	flags.StringVar(&f.authority, "authority", "", "send this `name` as :authority")
	flags.StringVar(&f.userAgent, "user-agent", "", "send this `text` before nearcall's own user agent")
	flags.IntVar(&f.maxSize, "max-msg-sz", 4<<20, "refuse replies that are larger than this number of `bytes`")
	return f
}

// addFiles adds the flags for files that describe the server's services, as grpcurl has them.
func (f *connFlags) addFiles(flags *flag.FlagSet) {
	flags.Var(&f.protos, "proto", "take the services from this .proto `file` instead of the server's reflection; can be repeated")
	flags.Var(&f.importPaths, "import-path", "look for imports of -proto in this `folder`; can be repeated; without it, in the current folder and those of the files")
	flags.Var(&f.sets, "protoset", "take the services from this `file` of protoc -o or buf build instead of the server's reflection; can be repeated")
}

// files returns the files of the flags, nil without such flags.
func (f *connFlags) files(ctx context.Context) (*protoregistry.Files, error) {
	switch {
	case len(f.protos) > 0 && len(f.sets) > 0:
		return nil, usageError("-proto contradicts -protoset")
	case len(f.importPaths) > 0 && len(f.protos) == 0:
		return nil, usageError("-import-path needs -proto")
	case len(f.protos) > 0:
		files, err := schema.Compile(ctx, f.protos, f.importPaths)
		if err != nil {
			return nil, fmt.Errorf("-proto: %w", err)
		}
		return files, nil
	case len(f.sets) > 0:
		files, err := schema.Load(f.sets)
		if err != nil {
			return nil, fmt.Errorf("-protoset: %w", err)
		}
		return files, nil
	}
	return nil, nil
}

// addTLS adds the flags for TLS to flags.
func (f *connFlags) addTLS(flags *flag.FlagSet) {
	flags.StringVar(&f.cacert, "cacert", "", "use TLS and trust the certificate authorities in this PEM `file`")
	flags.StringVar(&f.cert, "cert", "", "use TLS with the client's certificate in this PEM `file`; needs -key")
	flags.StringVar(&f.key, "key", "", "`file` with the private key of -cert")
	flags.BoolVar(&f.skipVerify, "insecure", false, "use TLS, and do not verify the server's certificate")
	flags.BoolVar(&f.plaintext, "plaintext", false, "use no TLS; without this, a server on another host must have it")
	flags.StringVar(&f.serverName, "servername", "", "use TLS, and expect a certificate for this `name`")
}

// maxDescription is the maximum size of reflection's answers, in bytes, even if -max-msg-sz is
// less: that limits the replies to the user's calls.
const maxDescription = 4 << 20

// A remote is the server that a command connects to.
type remote struct {
	target string
	secure bool // whether connections have TLS
	conn   *nearcall.ClientConn
	schema *schema.Server
	where  string // where the schema is, for errors: at the target or in files
	again  string // the flags for files, and the target, for commands that errors recommend
	close  func()
}

// open connects to target. The context that it returns has the metadata and the deadline of
// the flags.
func (f *connFlags) open(ctx context.Context, target string) (context.Context, *remote, error) {
	if err := reachable(target); err != nil {
		return nil, nil, err
	}
	if f.maxSize <= 0 {
		return nil, nil, usageError(fmt.Sprintf("-max-msg-sz %d: no reply is that small", f.maxSize))
	}
	creds, err := f.credentials(target)
	if err != nil {
		return nil, nil, err
	}
	files, err := f.files(ctx)
	if err != nil {
		return nil, nil, err
	}
	opts := []nearcall.DialOption{nearcall.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(f.maxSize))}
	if creds != nil {
		opts = append(opts, nearcall.WithTransportCredentials(creds))
	}
	if f.authority != "" {
		opts = append(opts, nearcall.WithAuthority(f.authority))
	}
	if f.userAgent != "" {
		opts = append(opts, nearcall.WithUserAgent(f.userAgent))
	}
	conn, err := nearcall.NewClient(target, opts...)
	if err != nil {
		return nil, nil, err
	}
	cancel := func() {}
	if f.maxTime > 0 {
		ctx, cancel = context.WithTimeout(ctx, time.Duration(f.maxTime))
	}
	if len(f.headers) > 0 {
		ctx = metadata.NewOutgoingContext(ctx, metadata.MD(f.headers))
	}
	p := &remote{target: target, secure: isTLS(creds), conn: conn, where: "at " + target, again: target}
	var describer grpc.ClientConnInterface = conn
	limit, stop := max(f.maxSize, maxDescription), func() {}
	if files != nil {
		p.where = "in " + strings.Join(append(f.protos, f.sets...), ", ")
		p.again = f.protos.flags("-proto") + f.importPaths.flags("-import-path") + f.sets.flags("-protoset") + target
		describer, stop = schema.Local(files)
		limit = math.MaxInt32
	}
	p.schema = schema.New(ctx, describer, grpc.MaxCallRecvMsgSize(limit))
	p.close = func() {
		p.schema.Close()
		stop()
		_ = conn.Close()
		cancel()
	}
	return ctx, p, nil
}

// reachable returns an error for a target that no server can have.
func reachable(target string) error {
	switch schemeOf(target) {
	case "inproc":
		return usageError(fmt.Sprintf("cannot reach %q: inproc names exist only within the server's own process; let the server listen on unix:PATH, too", target))
	case "http", "https":
		return usageError(fmt.Sprintf("%q is a URL; write tcp:HOST:PORT for a server of nearcall, or HOST:PORT for another gRPC server", target))
	}
	return nil
}

// schemeOf returns what stands before the first colon of target.
func schemeOf(target string) string {
	scheme, _, _ := strings.Cut(strings.ToLower(target), ":")
	return scheme
}

// isTLS reports whether creds, which can be nil, encrypt.
func isTLS(creds credentials.TransportCredentials) bool {
	return creds != nil && creds.Info().SecurityProtocol == "tls"
}

// credentials returns the transport credentials for target, nil for those that need none.
func (f *connFlags) credentials(target string) (credentials.TransportCredentials, error) {
	scheme := schemeOf(target)
	secure := f.cacert != "" || f.cert != "" || f.key != "" || f.skipVerify || f.serverName != ""
	switch {
	case f.authority != "" && f.serverName != "" && f.authority != f.serverName:
		return nil, usageError(fmt.Sprintf("-servername %s contradicts -authority %s: gRPC has one name for both", f.serverName, f.authority))
	case secure && f.plaintext:
		return nil, usageError("-plaintext contradicts the flags for TLS")
	case scheme == "ws" && secure:
		return nil, usageError("ws: has no TLS; write wss:, or leave the flags for TLS out")
	case scheme == "ws" && !f.plaintext && !staysHere(target):
		return nil, usageError("ws: has no TLS; write wss:, or allow that with -plaintext")
	case (f.cert == "") != (f.key == ""):
		return nil, usageError("-cert and -key need each other")
	case f.skipVerify && f.cacert != "":
		return nil, usageError("-insecure verifies nothing, and contradicts -cacert")
	case scheme == "wss" && f.plaintext:
		return nil, usageError("-plaintext contradicts wss:, which has TLS; write ws:")
	case scheme == "quic" && f.plaintext:
		return nil, usageError("-plaintext contradicts quic:, which always has TLS")
	case !secure && scheme == "wss": // the system's certificates count
		return nil, nil
	case !secure && staysHere(target) && !socketScheme(target):
		return insecure.NewCredentials(), nil
	case !secure && f.plaintext:
		return insecure.NewCredentials(), nil
	case !secure && socketScheme(target):
		return nil, nil
	}
	config := &tls.Config{ServerName: f.serverName, InsecureSkipVerify: f.skipVerify}
	if f.cacert != "" {
		pem, err := os.ReadFile(f.cacert)
		if err != nil {
			return nil, fmt.Errorf("-cacert: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("-cacert: %s has no certificate in PEM form", f.cacert)
		}
	}
	if f.cert != "" {
		pair, err := tls.LoadX509KeyPair(f.cert, f.key)
		if err != nil {
			return nil, fmt.Errorf("-cert and -key: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return nearcall.NewTLS(config), nil
}

// socketScheme reports whether target is one of nearcall's own on this machine, which need no
// credentials.
func socketScheme(target string) bool {
	scheme := schemeOf(target)
	return scheme == "unix" || scheme == "unix-abstract" || scheme == "shm"
}

// staysHere reports whether connections to target certainly stay on this machine. Those need
// no TLS.
func staysHere(target string) bool {
	address := target
	if u, err := url.Parse(target); err == nil && strings.EqualFold(u.Scheme, "ws") {
		address = net.JoinHostPort(u.Hostname(), "80")
	}
	for _, prefix := range []string{"grpc:", "tcp:", "dns:", "passthrough:", "ipv4:", "ipv6:"} {
		if len(address) >= len(prefix) && strings.EqualFold(address[:len(prefix)], prefix) {
			address = strings.TrimPrefix(address[len(prefix):], "///")
		}
	}
	if socketScheme(address) {
		return true
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = strings.Trim(address, "[]")
	}
	ip, err := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || err == nil && ip.Unmap().IsLoopback()
}

// hint adds to err what the user could try instead, if the server cannot be reached or speaks
// another protocol. It replaces what nearcall advises Go programs to do.
func (p *remote) hint(err error) error {
	st := status.Convert(err)
	text, advice := st.Message(), ""
	for _, h := range hints {
		if st.Code() == h.code && strings.Contains(text, h.says) && (h.scheme == "" || h.scheme == schemeOf(p.target)) && !(h.plain && p.secure) {
			text, advice = strings.Replace(text, h.drop, "", 1), h.advice
			break
		}
	}
	if advice == "" {
		return err
	}
	if target := strings.TrimPrefix(p.target, "grpc:"); socketScheme(target) {
		advice = strings.ReplaceAll(advice, "tcp:TARGET", target)
	} else {
		advice = strings.ReplaceAll(advice, "TARGET", target)
	}
	return status.Errorf(st.Code(), "%s; %s", text, advice)
}

// hints are in the order in which they are tried.
var hints = []struct {
	code         codes.Code
	says         string // a part of the message
	scheme       string // of the target; "" for any
	plain        bool   // whether this applies to connections without TLS only
	drop, advice string // what is removed from the message, and what is added
}{
	{codes.Unavailable, "first record does not look like a TLS handshake", "wss", false, forPrograms, "write ws:"},
	{codes.Unavailable, "first record does not look like a TLS handshake", "", false, forPrograms, "the server has no TLS, and -plaintext does without"},
	{codes.Unavailable, "the server expects TLS", "", false, "; use WithTransportCredentials", "use -cacert, -servername or -insecure"},
	{codes.Unavailable, "if it expects TLS, use WithTransportCredentials", "", true, "; if it expects TLS, use WithTransportCredentials", "if the server has TLS, use -cacert, -servername or -insecure"},
	{codes.Unavailable, "an HTTP/1 server listens there", "", true, ", or use WithTransportCredentials", "if the server has TLS, use -cacert, -servername or -insecure"},
	{codes.Unavailable, "error reading server preface", "", true, "", "if the server has TLS, use -cacert, -servername or -insecure"},
	{codes.Unavailable, "does not answer the request for WebSocket as an HTTP/1.1 server", "ws", true, "", "if the server has TLS, write wss:"},
	{codes.Unavailable, "x509: certificate signed by unknown authority", "", false, "", "-cacert trusts those of a file, and -insecure any"},
	{codes.Unavailable, "x509: certificate is valid for", "", false, "", "-servername expects another name"},
	{codes.Unavailable, "x509: cannot validate certificate for", "", false, "", "-servername expects a name"},
	{codes.Unavailable, "tls: certificate required", "", false, "", "-cert and -key give the server one"},
	{codes.Unimplemented, "this is a nearcall server", "", false, "", "here that is the target tcp:TARGET"},
	{codes.ResourceExhausted, "received message larger than max", "", false, "", "-max-msg-sz lets larger replies in"},
}

const forPrograms = "; dial it without these credentials, or give the server some"
