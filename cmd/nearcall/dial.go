package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/fullstorydev/grpcurl"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/durations"
)

// connFlags are the flags that say how to connect, and where the services are described. They are
// grpcurl's.
type connFlags struct {
	headers, rpcHeaders, reflectHeaders []string
	expandHeaders                       bool
	maxTime, connectTimeout             seconds
	cacert, cert, key                   string
	serverName, authority, userAgent    string
	skipVerify, plaintext               bool
	maxSize                             int

	protos, sets, importPaths []string
}

// add adds the flags of commands that call the server.
func (f *connFlags) add(c *cobra.Command) {
	f.connectTimeout = seconds(10 * time.Second)
	flags := c.Flags()
	flags.StringArrayVarP(&f.headers, "header", "H", nil, "send this `'name: value'` as metadata; can be repeated; values of names that end in -bin are base64")
	flags.BoolVar(&f.expandHeaders, "expand-headers", false, "replace ${NAME} in metadata by the value of that environment variable")
	flags.Var(&f.maxTime, "max-time", "give up after this `time`: seconds, or a time such as 500ms")
	flags.Var(&f.connectTimeout, "connect-timeout", "give up after this `time` without a connection")
	flags.StringVar(&f.userAgent, "user-agent", "", "send this `text` before nearcall's own user agent")
	flags.IntVar(&f.maxSize, "max-msg-sz", 4<<20, "refuse replies that are larger than this number of `bytes`")
	f.addTLS(c)
}

// addFiles adds the flags of commands that need the services' descriptions.
func (f *connFlags) addFiles(c *cobra.Command) {
	flags := c.Flags()
	flags.StringArrayVar(&f.protos, "proto", nil, "take the services from this .proto `file` instead of the server's reflection; can be repeated")
	flags.StringArrayVar(&f.importPaths, "import-path", nil, "look for -proto and its imports in this `folder`; can be repeated; without it, in the current folder and those of the files")
	flags.StringArrayVar(&f.sets, "protoset", nil, "take the services from this `file` of protoc -o or buf build instead of the server's reflection; can be repeated")
	flags.StringArrayVar(&f.rpcHeaders, "rpc-header", nil, "as -H, but for the call alone")
	flags.StringArrayVar(&f.reflectHeaders, "reflect-header", nil, "as -H, but for reflection alone")
	c.MarkFlagsMutuallyExclusive("proto", "protoset")
}

// addTLS adds the flags for TLS.
func (f *connFlags) addTLS(c *cobra.Command) {
	flags := c.Flags()
	flags.StringVar(&f.cacert, "cacert", "", "use TLS and trust the certificate authorities in this PEM `file`")
	flags.StringVar(&f.cert, "cert", "", "use TLS with the client's certificate in this PEM `file`; needs -key")
	flags.StringVar(&f.key, "key", "", "`file` with the private key of -cert")
	flags.BoolVar(&f.skipVerify, "insecure", false, "use TLS, and do not verify the server's certificate")
	flags.BoolVar(&f.plaintext, "plaintext", false, "use no TLS: the default on this machine; other hosts must have TLS without it")
	flags.StringVar(&f.serverName, "servername", "", "use TLS, and expect a certificate for this `name`")
	flags.StringVar(&f.authority, "authority", "", "send this `name` as :authority, and expect a certificate for it")
	c.MarkFlagsRequiredTogether("cert", "key")
	c.MarkFlagsMutuallyExclusive("insecure", "cacert")
	for _, name := range []string{"cacert", "cert", "insecure", "servername"} {
		c.MarkFlagsMutuallyExclusive("plaintext", name)
	}
}

// seconds is the value of a flag that takes a time: a number of seconds, as for grpcurl, or a
// duration as Go writes it, such as 500ms. It implements [pflag.Value].
type seconds time.Duration

func (*seconds) Type() string { return "time" }

func (s *seconds) String() string {
	if *s == 0 {
		return "" // no default
	}
	return time.Duration(*s).String()
}

func (s *seconds) Set(text string) error {
	d, err := time.ParseDuration(text)
	if n, plain := strconv.ParseFloat(text, 64); plain == nil {
		d, err = durations.Of(n*float64(time.Second)), nil
	}
	if err != nil || d <= 0 {
		return errors.New("write a number of seconds above 0, or a time such as 500ms")
	}
	*s = seconds(d)
	return nil
}

// A remote is the server that a command connects to.
type remote struct {
	target string
	secure bool // whether connections have TLS
	conn   *nearcall.ClientConn
	source grpcurl.DescriptorSource // of the services
	asked  *bounded                 // the connection that source asks; nil if it has files
	close  func()
}

// options returns the options for a connection to target, and its credentials, nil for none.
func (f *connFlags) options(target string) (opts []nearcall.DialOption, creds credentials.TransportCredentials, err error) {
	switch schemeOf(target) {
	case "inproc":
		return nil, nil, usageError(fmt.Sprintf("cannot reach %q: inproc names exist only within the server's own process; let the server listen on unix:PATH, too", target))
	case "http", "https":
		return nil, nil, usageError(fmt.Sprintf("%q is a URL; write tcp:HOST:PORT for a server of nearcall, or HOST:PORT for another gRPC server", target))
	}
	if strings.HasPrefix(target, "/") || strings.HasPrefix(target, "./") {
		return nil, nil, usageError(fmt.Sprintf("%q is a path; write unix:%s for a unix socket", target, target))
	}
	if creds, err = f.credentials(target); err != nil {
		return nil, nil, err
	}
	if creds != nil {
		opts = append(opts, nearcall.WithTransportCredentials(creds))
	}
	if f.authority != "" {
		opts = append(opts, nearcall.WithAuthority(f.authority))
	}
	return opts, creds, nil
}

// isTLS reports whether creds, which can be nil, encrypt.
func isTLS(creds credentials.TransportCredentials) bool {
	return creds != nil && creds.Info().SecurityProtocol == "tls"
}

// open prepares to connect to target. The context that it returns has the metadata and the deadline
// of the flags.
func (f *connFlags) open(ctx context.Context, target string) (context.Context, *remote, error) {
	if f.maxSize <= 0 {
		return nil, nil, usageError(fmt.Sprintf("-max-msg-sz %d: no reply is that small", f.maxSize))
	}
	opts, creds, err := f.options(target)
	if err != nil {
		return nil, nil, err
	}
	if f.expandHeaders {
		for _, all := range []*[]string{&f.headers, &f.rpcHeaders, &f.reflectHeaders} {
			if *all, err = grpcurl.ExpandHeaders(*all); err != nil {
				return nil, nil, usageError(err.Error())
			}
		}
	}
	opts = append(opts, nearcall.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(f.maxSize)))
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
	p := &remote{target: target, secure: isTLS(creds), conn: conn}
	stop, err := p.describe(ctx, f)
	p.close = func() {
		stop()
		_ = conn.Close()
		cancel()
	}
	if err != nil {
		p.close()
		return nil, nil, err
	}
	return metadata.NewOutgoingContext(ctx, grpcurl.MetadataFromHeaders(f.headers)), p, nil
}

// connect connects conn, and reports whether the first attempt succeeds before ctx is done, and the
// server keeps the connection.
func connect(ctx context.Context, conn *nearcall.ClientConn) bool {
	conn.Connect() // so that Idle means that the connection has ended again
	for {
		s := conn.GetState()
		if s != connectivity.Connecting || !conn.WaitForStateChange(ctx, s) {
			return s == connectivity.Ready
		}
	}
}

// connect returns an error if there is no connection after the time of -connect-timeout. If the
// connection fails earlier, calls say why.
func (p *remote) connect(ctx context.Context, timeout seconds) error {
	limited, cancel := context.WithTimeout(ctx, time.Duration(timeout))
	defer cancel()
	if !connect(limited, p.conn) && limited.Err() != nil && ctx.Err() == nil {
		return status.Errorf(codes.DeadlineExceeded, "there is no connection to %s after %v", p.target, &timeout)
	}
	return nil
}

// schemeOf returns the part of target before the first colon.
func schemeOf(target string) string {
	scheme, _, _ := strings.Cut(strings.ToLower(target), ":")
	return scheme
}

// credentials returns the transport credentials for target, nil for those that need none.
func (f *connFlags) credentials(target string) (credentials.TransportCredentials, error) {
	scheme := schemeOf(target)
	secure := f.cacert != "" || f.cert != "" || f.key != "" || f.skipVerify || f.serverName != ""
	switch {
	case f.authority != "" && f.serverName != "" && f.authority != f.serverName:
		return nil, usageError(fmt.Sprintf("-servername %s contradicts -authority %s: gRPC has one name for both", f.serverName, f.authority))
	case scheme == "ws" && secure:
		return nil, usageError("ws: has no TLS; write wss:, or leave the flags for TLS out")
	case scheme == "ws" && !f.plaintext && !staysHere(target):
		return nil, usageError("ws: has no TLS; write wss:, or allow that with -plaintext")
	case (scheme == "wss" || scheme == "quic") && f.plaintext:
		return nil, usageError(fmt.Sprintf("-plaintext contradicts %s:, which always has TLS", scheme))
	case !secure && scheme == "wss": // the system's certificates count
		return nil, nil
	case !secure && socketScheme(target) && !f.plaintext:
		return nil, nil
	case !secure && (staysHere(target) || f.plaintext):
		return insecure.NewCredentials(), nil
	}
	config, err := grpcurl.ClientTLSConfig(f.skipVerify, f.cacert, f.cert, f.key)
	if err != nil {
		return nil, fmt.Errorf("-cacert, -cert and -key: %w", err)
	}
	config.ServerName = f.serverName
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

// hint adds advice for the user to err if the server cannot be reached or speaks another
// protocol. It replaces nearcall's advice for Go programs.
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
	drop, advice string // the text to remove from the message, and the text to add
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
