package interop

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
)

// retried returns a service config whose policy makes up to four attempts, with a short
// backoff. more replaces or adds fields of the policy, and rest adds fields of the config.
func retried(more, rest string) string {
	return `{"methodConfig":[{"name":[{"service":"grpc.testing.TestService"}],"retryPolicy":{
		"maxAttempts":4,"initialBackoff":"0.001s","maxBackoff":"0.002s","backoffMultiplier":1.5,
		"retryableStatusCodes":["UNAVAILABLE","RESOURCE_EXHAUSTED"]` + more + `}}]` + rest + `}`
}

var errAgain = status.Error(codes.Unavailable, "again")

// A script is the list of what the handlers of a call's attempts do. Later attempts echo.
// Each handler notes what it sees.
type script struct {
	*Actor
	mu    sync.Mutex
	acts  []func(ctx context.Context) error
	count int
}

func newScript(c *C, acts ...func(context.Context) error) *script {
	return &script{Actor: c.Named("handler"), acts: acts}
}

// play sets the script of the next call.
func (s *script) play(acts ...func(context.Context) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.acts, s.count = acts, 0
}

func (s *script) next(ctx context.Context) error {
	md, _ := metadata.FromIncomingContext(ctx)
	s.mu.Lock()
	n := s.count
	s.count++
	act := func(context.Context) error { return nil }
	if n < len(s.acts) {
		act = s.acts[n]
	}
	s.mu.Unlock()
	s.Note("attempt %d, previous %q", n+1, md["grpc-previous-rpc-attempts"])
	return act(ctx)
}

func (s *script) service() *Service {
	return &Service{
		Empty: func(ctx context.Context, m *pb.Empty) (*pb.Empty, error) { return m, s.next(ctx) },
		Unary: func(ctx context.Context, m *pb.SimpleRequest) (*pb.SimpleResponse, error) {
			if err := s.next(ctx); err != nil {
				return nil, err
			}
			return echo(ctx, m)
		},
		Output: func(m *pb.StreamingOutputCallRequest, ss outputServer) error {
			if err := s.next(ss.Context()); err != nil {
				return err
			}
			return ss.Send(out(string(m.Payload.Body)))
		},
		Input: func(ss inputServer) error {
			n := 0
			for {
				m, err := ss.Recv()
				if err == io.EOF {
					break
				}
				if err != nil {
					return err
				}
				n += len(m.Payload.Body)
			}
			s.Note("%d bytes", n)
			if err := s.next(ss.Context()); err != nil {
				return err
			}
			return ss.SendAndClose(&pb.StreamingInputCallResponse{AggregatedPayloadSize: int32(n)})
		},
	}
}

func fails(err error) func(context.Context) error {
	return func(context.Context) error { return err }
}

func again(n int) []func(context.Context) error {
	return slices.Repeat([]func(context.Context) error{fails(errAgain)}, n)
}

func pushback(values ...string) func(context.Context) error {
	return func(ctx context.Context) error {
		for _, v := range values {
			grpc.SetTrailer(ctx, metadata.Pairs("grpc-retry-pushback-ms", v))
		}
		return errAgain
	}
}

// lasting notes an error that may wrap the one of exhausted retries.
func (a *Actor) lasting(label string, err error) {
	a.Note("%s: %v %T %v", label, status.Code(err), err, err)
}

// retryCases are item 43.
var retryCases = slices.Concat(retryRules, retryStreams, retryBeside)

var retryRules = []Case{
	{43, "a unary call", func(c *C) {
		s := newScript(c)
		conn := c.Start(Config{Service: s.service(), ServiceConfig: retried("", "")})
		for n := range 6 {
			acts := again(n)
			for i := range acts {
				acts[i] = func(ctx context.Context) error {
					grpc.SetTrailer(ctx, metadata.Pairs("t", fmt.Sprint("of attempt ", i+1)))
					return status.Error(codes.Unavailable, fmt.Sprint("again ", i+1))
				}
			}
			s.play(append(acts, func(ctx context.Context) error {
				grpc.SetHeader(ctx, metadata.Pairs("h", "header"))
				grpc.SetTrailer(ctx, metadata.Pairs("t", "the last"))
				return nil
			})...)
			got := reply("untouched")
			var header, trailer metadata.MD
			err := conn.Invoke(c.Context(), unaryCall, request("x"), got, grpc.Header(&header), grpc.Trailer(&trailer))
			c.lasting(fmt.Sprintf("%d failures", n), err)
			c.Msg("reply", got)
			c.MD("header", header)
			c.MD("trailer", trailer)
		}
	}},
	{43, "codes", func(c *C) {
		s := newScript(c)
		conn := c.Start(Config{Service: s.service(), ServiceConfig: retried("", "")})
		for code := codes.OK; code <= codes.Unauthenticated; code++ {
			s.play(fails(status.Error(code, "of attempt 1")), fails(status.Error(codes.NotFound, "of attempt 2")))
			_, err := conn.UnaryCall(c.Context(), request("x"))
			c.Err(code.String(), err)
		}
	}},
	{43, "a header commits", func(c *C) {
		s := newScript(c)
		conn := c.Start(Config{Service: s.service(), ServiceConfig: retried("", "")})
		for name, act := range map[string]func(context.Context) error{
			"SetHeader":       func(ctx context.Context) error { return grpc.SetHeader(ctx, metadata.Pairs("h", "1")) },
			"SendHeader":      func(ctx context.Context) error { return grpc.SendHeader(ctx, metadata.Pairs("h", "1")) },
			"an empty header": func(ctx context.Context) error { return grpc.SendHeader(ctx, nil) },
			"SetHeader(nil)":  func(ctx context.Context) error { return grpc.SetHeader(ctx, nil) },
		} {
			a := c.Named(name)
			s.mu.Lock()
			s.Actor = c.Named(name + ", handler")
			s.mu.Unlock()
			run := func(ctx context.Context) error {
				if err := act(ctx); err != nil {
					return err
				}
				return errAgain
			}
			s.play(run)
			_, err := conn.UnaryCall(c.Context(), request("x"))
			a.Err("unary", err)
			s.play(run)
			o, err := conn.StreamingOutputCall(c.Context(), in("x"))
			a.Err("stream", err)
			_, err = o.Recv()
			a.Err("recv", err)
		}
	}},
	{43, "the server pushes back", func(c *C) {
		s := newScript(c)
		conn := c.Start(Config{Service: s.service(), ServiceConfig: retried("", "")})
		for _, values := range [][]string{{"0"}, {"3"}, {"+3"}, {"-1"}, {"soon"}, {""}, {"1.5"}, {"1", "1"}, {"99999999999999999999"}} {
			s.play(pushback(values...), fails(errAgain))
			_, err := conn.UnaryCall(c.Context(), request("x"))
			c.Err(fmt.Sprintf("unary %q", values), err)
			s.play(pushback(values...), fails(errAgain))
			o, err := conn.StreamingOutputCall(c.Context(), in("x"))
			c.Err("stream", err)
			_, err = o.Recv()
			c.Err(fmt.Sprintf("stream %q", values), err)
		}
	}},
	{43, "a pushback is waited for, and the backoff is not", func(c *C) {
		s := newScript(c)
		conn := c.Start(Config{Service: s.service(), ServiceConfig: retried(`,"initialBackoff":"3600s","maxBackoff":"3600s"`, "")})
		s.play(pushback("30"), pushback("0"))
		begun := time.Now()
		_, err := conn.UnaryCall(c.Context(), request("x"))
		c.Err("unary", err)
		d := time.Since(begun)
		c.Note("waited %v", d >= 30*time.Millisecond && d < time.Minute)
	}},
	{43, "a pushback in the end of a code that is not retried", func(c *C) {
		s := newScript(c)
		conn := c.Start(Config{Service: s.service(), ServiceConfig: retried("", "")})
		s.play(func(ctx context.Context) error {
			grpc.SetTrailer(ctx, metadata.Pairs("grpc-retry-pushback-ms", "1"))
			return status.Error(codes.Internal, "no")
		})
		_, err := conn.UnaryCall(c.Context(), request("x"))
		c.Err("unary", err)
	}},
	{43, "attempts are limited", func(c *C) {
		s := newScript(c)
		for _, k := range []struct {
			policy, client int
			set            bool
		}{{2, 0, false}, {9, 0, false}, {9, 7, true}, {3, 7, true}, {9, 2, true}, {9, 1, true}, {9, -3, true}} {
			cfg := Config{Service: s.service(), ServiceConfig: retried(fmt.Sprintf(`,"maxAttempts":%d`, k.policy), "")}
			if k.set {
				cfg.MaxCallAttempts = &k.client
			}
			conn := c.Start(cfg)
			s.play(again(20)...)
			_, err := conn.UnaryCall(c.Context(), request("x"))
			c.lasting(fmt.Sprintf("%+v, unary", k), err)
			s.play(again(20)...)
			i, err := conn.StreamingInputCall(c.Context())
			c.Err("start", err)
			_, err = i.CloseAndRecv()
			c.lasting("stream", err)
		}
	}},
	{43, "disabled", func(c *C) {
		s := newScript(c)
		conn := c.Start(Config{Service: s.service(), ServiceConfig: retried("", `,"retryThrottling":{"maxTokens":10,"tokenRatio":1}`), DisableRetry: true})
		for range 8 { // more than throttling would allow
			s.play(fails(errAgain))
			_, err := conn.UnaryCall(c.Context(), request("x"))
			c.Err("unary", err)
		}
		s.play(pushback("0"))
		o, err := conn.StreamingOutputCall(c.Context(), in("x"))
		c.Err("stream", err)
		_, err = o.Recv()
		c.Err("recv", err)
	}},
	{43, "throttling", func(c *C) {
		s := newScript(c)
		conn := c.Start(Config{Service: s.service(), ServiceConfig: retried("", `,"retryThrottling":{"maxTokens":10,"tokenRatio":0.5}`)})
		other := func() {
			_, err := conn.UnaryCall(c.Context(), request("x"))
			c.Err("another", err)
		}
		call := func(label string, acts ...func(context.Context) error) {
			s.play(acts...)
			_, err := conn.UnaryCall(c.Context(), request("x"))
			c.lasting(label, err)
		}
		call("10 tokens")
		call("10, two failures", again(2)...)
		call("8.5, two failures", again(2)...)
		call("7, four failures", again(4)...)
		call("5, one failure", again(1)...)
		s.play()
		for range 6 { // successful calls of any kind fill the bucket
			other()
		}
		call("7, one failure", again(1)...)
		call("6.5, not retryable", fails(status.Error(codes.NotFound, "no")))
		call("6.5, pushed back", pushback("-1"))
		call("5.5, one failure", again(1)...)
		call("4.5, pushed back", pushback("0"))
		s.play()
		for range 20 {
			o, err := conn.StreamingOutputCall(c.Context(), in("x"))
			c.Err("start", err)
			for err == nil {
				_, err = o.Recv()
			}
			c.Err("end", err)
		}
		call("10 again, three failures", again(3)...)
	}},
	{43, "calls of a method without a policy count for the throttler", func(c *C) {
		s := newScript(c)
		conn := c.Start(Config{Service: s.service(), ServiceConfig: `{"methodConfig":[{"name":[{"service":"grpc.testing.TestService","method":"UnaryCall"}],"retryPolicy":{
			"maxAttempts":2,"initialBackoff":"0.001s","maxBackoff":"0.001s","backoffMultiplier":1,"retryableStatusCodes":[14]}}],
			"retryThrottling":{"maxTokens":4,"tokenRatio":1}}`})
		call := func() {
			s.play(again(1)...)
			_, err := conn.UnaryCall(c.Context(), request("x"))
			c.Err("unary", err)
		}
		call()
		s.play(again(2)...)
		_, err := conn.UnaryCall(c.Context(), request("x"))
		c.lasting("twice", err)
		s.play()
		_, err = conn.EmptyCall(c.Context(), &pb.Empty{})
		c.Err("empty", err)
		call()
		s.play(pushback("-1"))
		_, err = conn.EmptyCall(c.Context(), &pb.Empty{})
		c.Err("empty, pushed back", err)
		call()
	}},
	{43, "a request that is larger than what is kept", func(c *C) {
		s := newScript(c)
		conn := c.Start(Config{Service: s.service(), ServiceConfig: retried("", ""), CallOptions: []grpc.CallOption{grpc.MaxRetryRPCBufferSize(100)}})
		for _, n := range []int{90, 91, 92, 500} { // the encoding is 4 bytes longer, and a header of 5 counts as well
			s.play(again(1)...)
			_, err := conn.UnaryCall(c.Context(), request(strings.Repeat("x", n)))
			c.Err(fmt.Sprintf("unary %d", n), err)
			s.play(again(1)...)
			_, err = conn.UnaryCall(c.Context(), request(strings.Repeat("x", n)), grpc.MaxRetryRPCBufferSize(1000))
			c.Err(fmt.Sprintf("unary %d, with more", n), err)
			s.play(again(1)...)
			o, err := conn.StreamingOutputCall(c.Context(), &pb.StreamingOutputCallRequest{Payload: &pb.Payload{Body: []byte(strings.Repeat("x", n))}})
			c.Err("start", err)
			_, err = o.Recv()
			c.Err(fmt.Sprintf("stream %d", n), err)
			s.play(again(1)...)
			i, err := conn.StreamingInputCall(c.Context())
			c.Err("start", err)
			for range 3 {
				c.Err("send", i.Send(&pb.StreamingInputCallRequest{Payload: &pb.Payload{Body: make([]byte, n/3)}}))
			}
			_, err = i.CloseAndRecv()
			c.Err(fmt.Sprintf("client stream %d", n), err)
		}
	}},
	{43, "errors of the client are not retried", func(c *C) {
		s := newScript(c)
		conn := c.Start(Config{Service: s.service(), ServiceConfig: retried(`,"retryableStatusCodes":["RESOURCE_EXHAUSTED","INTERNAL"]`, "")})
		_, err := conn.UnaryCall(c.Context(), request("too large"), grpc.MaxCallSendMsgSize(3))
		c.Err("send limit", err)
		_, err = conn.UnaryCall(c.Context(), request("too large"), grpc.MaxCallRecvMsgSize(3))
		c.Err("receive limit", err)
		err = conn.Invoke(c.Context(), unaryCall, "no message", &pb.SimpleResponse{})
		c.Note("no message: %v", status.Code(err))
		_, err = conn.UnaryCall(metadata.AppendToOutgoingContext(c.Context(), "K Ä", "v"), request("x"))
		c.Err("metadata", err)
	}},
	{43, "no reply", func(c *C) {
		s := newScript(c)
		raw := c.Raw("grpc.testing.TestService").Stream("UnaryCall", bidiDesc, func(ss grpc.ServerStream) error {
			if err := ss.RecvMsg(&pb.SimpleRequest{}); err != nil { // grpc-go loses the status of an attempt that ends before the request is sent
				return err
			}
			return s.next(ss.Context())
		})
		conn := c.Start(Config{Register: []func(grpc.ServiceRegistrar){raw.Register}, ServiceConfig: retried(`,"retryableStatusCodes":["UNAVAILABLE","INTERNAL"]`, "")})
		c.Err("at once", conn.Invoke(c.Context(), unaryCall, request("x"), &pb.SimpleResponse{}))
		s.play(again(5)...)
		c.lasting("never", conn.Invoke(c.Context(), unaryCall, request("x"), &pb.SimpleResponse{}))
	}},
	{43, "a deadline in the backoff", func(c *C) {
		s := newScript(c)
		conn := c.Start(Config{Service: s.service(), ServiceConfig: retried(`,"initialBackoff":"3600s","maxBackoff":"3600s"`, "")})
		_, err := conn.UnaryCall(c.Context(), request("x")) // connects
		c.Err("first", err)
		s.play(again(9)...)
		var trailer metadata.MD
		_, err = conn.UnaryCall(c.Timeout(100*time.Millisecond), request("x"), grpc.Trailer(&trailer))
		c.Err("unary", err)
		c.MD("trailer", trailer)
		s.play(again(9)...)
		o, err := conn.StreamingOutputCall(c.Timeout(100*time.Millisecond), in("x"))
		c.Err("start", err)
		_, err = o.Recv()
		c.Err("stream", err)
		ctx, cancel := c.Cancellable()
		s.play(func(context.Context) error { time.AfterFunc(5*time.Millisecond, cancel); return errAgain })
		_, err = conn.UnaryCall(ctx, request("x"))
		c.Err("cancelled", err)
	}},
	{43, "a deadline of the service config is for all attempts", func(c *C) {
		s := newScript(c)
		conn := c.Start(Config{Service: s.service(), ServiceConfig: fmt.Sprintf(`{"methodConfig":[{"name":[{}],"timeout":"%vs","retryPolicy":{
			"maxAttempts":5,"initialBackoff":"3600s","maxBackoff":"3600s","backoffMultiplier":1,"retryableStatusCodes":[14]}}]}`, c.Patiently(time.Second).Seconds())})
		_, err := conn.UnaryCall(c.Context(), request("x"))
		c.Code("first", err)
		s.play(pushback("1"), pushback("1"), fails(errAgain))
		_, err = conn.UnaryCall(c.Context(), request("x"))
		c.Err("unary", err)
	}},
	{43, "the client closes in the backoff", func(c *C) {
		s := newScript(c)
		var conn *Conn
		end := onEnd(func() { go conn.Close() })
		conn = c.Start(Config{Service: s.service(), ClientStats: []stats.Handler{end}, ServiceConfig: retried(`,"initialBackoff":"0.4s","maxBackoff":"0.4s"`, "")})
		s.play(fails(errAgain))
		_, err := conn.UnaryCall(c.Context(), request("x"))
		c.Err("unary", err)
	}},
	{43, "a hedgingPolicy is passed over", func(c *C) {
		s := newScript(c)
		conn := c.Start(Config{Service: s.service(), ServiceConfig: `{"methodConfig":[{"name":[{}],"hedgingPolicy":{"maxAttempts":3,"hedgingDelay":"0s","nonFatalStatusCodes":["UNAVAILABLE"]}}]}`})
		s.play(again(1)...)
		_, err := conn.UnaryCall(c.Context(), request("x"))
		c.Err("unary", err)
	}},
}

// A duplexScript is a bidirectional handler that runs one step after the other, across
// attempts.
type duplexScript struct {
	*Actor
	mu    sync.Mutex
	steps []func(duplexServer) error
}

func (d *duplexScript) run(ss duplexServer) error {
	md, _ := metadata.FromIncomingContext(ss.Context())
	d.Note("attempt, previous %q", md["grpc-previous-rpc-attempts"])
	for {
		d.mu.Lock()
		if len(d.steps) == 0 {
			d.mu.Unlock()
			return nil
		}
		step := d.steps[0]
		d.steps = d.steps[1:]
		d.mu.Unlock()
		if err := step(ss); err != nil {
			return err
		}
	}
}

var (
	duplexFail   = func(duplexServer) error { return errAgain }
	duplexHeader = func(ss duplexServer) error { return ss.SendHeader(metadata.Pairs("h", "1")) }
)

func (d *duplexScript) recv(ss duplexServer) error {
	m, err := ss.Recv()
	if err == io.EOF {
		d.Note("end of sending")
		return nil
	}
	if err != nil {
		return err
	}
	d.Note("received %s", m.Payload.Body)
	return nil
}

func duplexSend(text string) func(duplexServer) error {
	return func(ss duplexServer) error { return ss.Send(out(text)) }
}

// retryStreams are the operations of grpc-go's own test of retried streams, and more.
var retryStreams = []Case{
	{43, "streams", func(c *C) {
		type duplexClient = grpc.BidiStreamingClient[pb.StreamingOutputCallRequest, pb.StreamingOutputCallResponse]
		d := &duplexScript{}
		conn := c.Start(Config{Service: &Service{Duplex: d.run}, ServiceConfig: retried("", ""), CallOptions: []grpc.CallOption{grpc.MaxRetryRPCBufferSize(200)}})
		send := func(text string) func(*Actor, duplexClient) {
			return func(a *Actor, s duplexClient) { a.Err("send", s.Send(in(text))) }
		}
		recv := func(a *Actor, s duplexClient) {
			m, err := s.Recv()
			a.Err(fmt.Sprintf("recv %s", m.GetPayload().GetBody()), plainly(err))
		}
		closeSend := func(a *Actor, s duplexClient) { a.Err("close", s.CloseSend()) }
		header := func(a *Actor, s duplexClient) {
			md, err := s.Header()
			a.Err("header", err)
			a.MD("header", md)
		}
		trailer := func(a *Actor, s duplexClient) { a.MD("trailer", s.Trailer()) }
		ctx := func(_ *Actor, s duplexClient) { s.Context() }
		type (
			server = []func(duplexServer) error
			client = []func(*Actor, duplexClient)
		)
		for _, k := range []struct {
			name   string
			server server
			client client
		}{
			{"another code", server{d.recv, func(duplexServer) error { return status.Error(codes.Internal, "no") }}, client{send("1"), recv}},
			{"once", server{d.recv, duplexFail, d.recv, duplexSend("a")}, client{send("1"), recv, recv}},
			{"more than there are attempts", server{d.recv, duplexFail, d.recv, duplexFail, d.recv, duplexFail, d.recv, duplexFail, d.recv}, client{send("1"), recv}},
			{"two requests", server{d.recv, d.recv, duplexFail, d.recv, d.recv, duplexSend("a")}, client{send("1"), send("2"), recv, recv}},
			{"one request more each time", server{d.recv, duplexFail, d.recv, d.recv, duplexFail, d.recv, d.recv, d.recv, duplexSend("a")}, client{send("1"), send("2"), send("3"), recv, recv}},
			{"a message commits", server{d.recv, duplexFail, d.recv, duplexSend("a"), duplexFail}, client{send("1"), recv, recv}},
			{"by Header", server{d.recv, duplexFail, d.recv}, client{send("1"), header, recv}},
			{"by Header, with one", server{d.recv, duplexFail, d.recv, duplexHeader}, client{send("1"), header, recv, trailer}},
			{"a header commits", server{d.recv, duplexHeader, duplexFail}, client{send("1"), header, recv}},
			{"a header that nobody asked for commits", server{d.recv, duplexHeader, duplexFail}, client{send("1"), recv, trailer}},
			{"Header when attempts run out", server{d.recv, duplexFail, duplexFail, duplexFail, duplexFail}, client{send("1"), header, recv, trailer}},
			{"Context commits", server{d.recv, duplexFail}, client{send("1"), ctx, recv}},
			{"the end of sending", server{d.recv, d.recv, d.recv, duplexFail, d.recv, d.recv, d.recv, duplexSend("a"), duplexSend("b")}, client{send("1"), send("2"), closeSend, recv, recv, recv}},
			{"before anything was sent", server{duplexFail, duplexFail, duplexSend("a")}, client{recv, recv}},
			{"too much", server{d.recv, duplexFail}, client{send(strings.Repeat("x", 300)), recv}},
			{"too much together", server{d.recv, d.recv, duplexFail}, client{send(strings.Repeat("x", 110)), send(strings.Repeat("y", 110)), recv}},
			{"not too much", server{d.recv, d.recv, duplexFail}, client{send(strings.Repeat("x", 50)), send(strings.Repeat("y", 50)), recv}},
		} {
			a := c.Named(k.name)
			d.mu.Lock()
			d.Actor, d.steps = c.Named(k.name+" handler"), k.server
			d.mu.Unlock()
			finished := 0
			s, err := conn.FullDuplexCall(c.Context(), grpc.OnFinish(func(error) { finished++ }))
			a.Err("start", err)
			for _, op := range k.client {
				op(a, s)
			}
			a.Note("finished %d times", finished)
			d.mu.Lock()
			a.Note("%d steps are left", len(d.steps))
			d.mu.Unlock()
		}
	}},
	{43, "a sender notices", func(c *C) {
		d := &duplexScript{Actor: c.Named("handler")}
		failed := c.Gate()
		conn := c.Start(Config{Service: &Service{Duplex: d.run}, ServiceConfig: retried("", "")})
		d.steps = []func(duplexServer) error{func(duplexServer) error { failed.Open(); return errAgain }, d.recv, d.recv, d.recv, duplexSend("a")}
		s, err := conn.FullDuplexCall(c.Context())
		c.Err("start", err)
		failed.Wait()
		c.Pause()
		for _, text := range []string{"1", "2", "3"} {
			c.Err("send", s.Send(in(text)))
		}
		_, err = s.Recv()
		c.Err("recv", err)
		_, err = s.Recv()
		c.Err("end", err)
	}},
	{43, "a sender notices, beside a receiver", func(c *C) {
		d := &duplexScript{Actor: c.Named("handler")}
		failed := make(chan struct{}, 9)
		fail := func(duplexServer) error { failed <- struct{}{}; return errAgain }
		conn := c.Start(Config{Service: &Service{Duplex: d.run}, ServiceConfig: retried("", "")})
		d.steps = []func(duplexServer) error{fail, d.recv, fail, d.recv, d.recv, duplexSend("a")}
		s, err := conn.FullDuplexCall(c.Context())
		c.Err("start", err)
		got := make(chan struct{})
		go func() {
			defer close(got)
			a := c.Named("receiver")
			m, err := s.Recv()
			a.Err(fmt.Sprintf("recv %s", m.GetPayload().GetBody()), err)
			_, err = s.Recv()
			a.Err("end", err)
		}()
		c.Wait(failed)
		c.Err("send", s.Send(in("1")))
		c.Wait(failed) // the second attempt fails after it has received 1, replayed or sent directly
		c.Err("send", s.Send(in("2")))
		c.Wait(got)
	}},
	{43, "a message that changes after it was sent", func(c *C) {
		d := &duplexScript{Actor: c.Named("handler")}
		conn := c.Start(Config{Service: &Service{Duplex: d.run}, ServiceConfig: retried("", "")})
		d.steps = []func(duplexServer) error{d.recv, d.recv, duplexFail, d.recv, d.recv, duplexSend("a")}
		s, err := conn.FullDuplexCall(c.Context())
		c.Err("start", err)
		m := in("first")
		c.Err("send", s.Send(m))
		c.Err("send", s.Send(in("second")))
		_, err = s.Recv()
		c.Err("recv", err)
	}},
	{43, "other kinds of streams", func(c *C) {
		s := newScript(c)
		conn := c.Start(Config{Service: s.service(), ServiceConfig: retried("", "")})
		s.play(again(2)...)
		o, err := conn.StreamingOutputCall(c.Context(), in("x"))
		c.Err("server stream", err)
		for err == nil {
			var m *pb.StreamingOutputCallResponse
			m, err = o.Recv()
			c.Err(fmt.Sprintf("recv %s", m.GetPayload().GetBody()), err)
		}
		s.play(again(2)...)
		i, err := conn.StreamingInputCall(c.Context())
		c.Err("client stream", err)
		for n := range 3 {
			c.Err("send", i.Send(&pb.StreamingInputCallRequest{Payload: &pb.Payload{Body: make([]byte, n+1)}}))
		}
		sum, err := i.CloseAndRecv()
		c.Err(fmt.Sprint("sum ", sum.GetAggregatedPayloadSize()), err)
		s.play(again(2)...)
		u, err := conn.NewStream(c.Context(), unaryDesc, unaryCall)
		c.Err("unary by NewStream", err)
		c.Err("send", u.SendMsg(request("y")))
		got := &pb.SimpleResponse{}
		c.Err("recv", u.RecvMsg(got))
		c.Msg("reply", got)
		s.play(again(2)...)
		got.Reset()
		c.Err("server stream by Invoke", conn.Invoke(c.Context(), outputCall, in("z"), got))
		c.Note("%s", got.Payload.GetBody())
	}},
}

// plainly unwraps the error of exhausted retries, which only some operations of grpc-go
// wrap.
func plainly(err error) error {
	if inner := errors.Unwrap(err); inner != nil {
		return inner
	}
	return err
}

// eventCount records the events of a client's stats handler, by attempt.
type eventCount struct {
	mu       sync.Mutex
	attempts [][]string
}

type attemptKey struct{}

func (e *eventCount) TagRPC(ctx context.Context, i *stats.RPCTagInfo) context.Context {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.attempts = append(e.attempts, []string{"TagRPC " + i.FullMethodName})
	return context.WithValue(ctx, attemptKey{}, len(e.attempts)-1)
}

func (e *eventCount) HandleRPC(ctx context.Context, s stats.RPCStats) {
	line := strings.TrimPrefix(fmt.Sprintf("%T", s), "*stats.")
	switch s := s.(type) {
	case *stats.Begin:
		line += fmt.Sprintf(" transparent %v", s.IsTransparentRetryAttempt)
	case *stats.OutHeader:
		line += " " + showMD(s.Header)
	case *stats.InTrailer:
		line += " " + showMD(s.Trailer)
	case *stats.OutPayload:
		line += fmt.Sprintf(" %d", s.Length)
	case *stats.End:
		line += fmt.Sprintf(" %v %s", s.Error, showMD(s.Trailer))
	case *stats.DelayedPickComplete:
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	n := ctx.Value(attemptKey{}).(int)
	e.attempts[n] = append(e.attempts[n], line)
}

func (e *eventCount) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (e *eventCount) HandleConn(context.Context, stats.ConnStats)                       {}

// dump notes the events of each attempt. Their order across attempts depends on timing.
func (e *eventCount) dump(a *Actor) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, events := range e.attempts {
		slices.Sort(events)
		a.Note("%q", events)
	}
	e.attempts = nil
}

// onEnd is a stats handler that is called at the end of an attempt.
type onEnd func()

func (f onEnd) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (f onEnd) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (f onEnd) HandleConn(context.Context, stats.ConnStats)                       {}

func (f onEnd) HandleRPC(_ context.Context, s stats.RPCStats) {
	if _, over := s.(*stats.End); over {
		f()
	}
}

// fickle are credentials that fail the first times.
type fickle struct {
	asked atomic.Int32
	fail  int32
	err   error
}

func (f *fickle) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	n := f.asked.Add(1)
	if n <= f.fail {
		return nil, f.err
	}
	return map[string]string{"auth": fmt.Sprint("token ", n)}, nil
}

func (f *fickle) RequireTransportSecurity() bool { return false }

// retryBeside are about what accompanies a call: stats, credentials, interceptors,
// metadata.
var retryBeside = []Case{
	{43, "stats handlers are told of each attempt", func(c *C) {
		s := newScript(c)
		e := &eventCount{}
		conn := c.Start(Config{Service: s.service(), ServiceConfig: retried("", ""), ClientStats: []stats.Handler{e}})
		ctx := metadata.AppendToOutgoingContext(c.Context(), "k", "v", "grpc-previous-rpc-attempts", "mine")
		for n := range 5 {
			s.play(append(again(n), func(ctx context.Context) error { return grpc.SetTrailer(ctx, metadata.Pairs("t", "1")) })...)
			_, err := conn.UnaryCall(ctx, request("x"))
			c.lasting(fmt.Sprintf("unary, %d failures", n), err)
			e.dump(c.Actor)
		}
		s.play(again(2)...)
		i, err := conn.StreamingInputCall(ctx)
		c.Err("stream", err)
		for n := range 2 {
			c.Err("send", i.Send(&pb.StreamingInputCallRequest{Payload: &pb.Payload{Body: make([]byte, n+1)}}))
		}
		_, err = i.CloseAndRecv()
		c.Err("stream", err)
		e.dump(c.Actor)
	}},
	{43, "credentials are asked for each attempt", func(c *C) {
		s := newScript(c)
		h := c.Named("handler")
		creds, own := &fickle{}, &fickle{}
		conn := c.Start(Config{Service: s.service(), ServiceConfig: retried("", ""), PerRPC: []credentials.PerRPCCredentials{creds}})
		show := func(err error) func(context.Context) error {
			return func(ctx context.Context) error {
				md, _ := metadata.FromIncomingContext(ctx)
				h.Note("auth %q", md["auth"])
				return err
			}
		}
		s.play(show(errAgain), show(errAgain), show(nil))
		_, err := conn.UnaryCall(c.Context(), request("x"), grpc.PerRPCCredentials(own))
		c.Err("unary", err)
		s.play(show(errAgain), show(nil))
		o, err := conn.StreamingOutputCall(c.Context(), in("x"), grpc.PerRPCCredentials(own))
		c.Err("stream", err)
		_, err = o.Recv()
		c.Err("recv", err)
	}},
	{43, "credentials that fail", func(c *C) {
		for _, code := range []codes.Code{codes.Unavailable, codes.Unauthenticated} {
			for _, fail := range []int32{2, 9} {
				s := newScript(c)
				conn := c.Start(Config{Service: s.service(), ServiceConfig: retried("", "")})
				creds := &fickle{fail: fail, err: status.Error(code, "no token")}
				var p metadata.MD
				_, err := conn.UnaryCall(c.Context(), request("x"), grpc.PerRPCCredentials(creds), grpc.Trailer(&p))
				c.lasting(fmt.Sprintf("unary %v %d", code, fail), err)
				c.Note("asked %d times", creds.asked.Swap(0))
				o, err := conn.StreamingOutputCall(c.Context(), in("x"), grpc.PerRPCCredentials(creds))
				c.lasting(fmt.Sprintf("stream %v %d", code, fail), err)
				if err == nil {
					_, err = o.Recv()
					c.Err("recv", err)
				}
				c.Note("asked %d times", creds.asked.Load())
			}
		}
	}},
	{43, "credentials that fail in a later attempt", func(c *C) {
		s := newScript(c)
		conn := c.Start(Config{Service: s.service(), ServiceConfig: retried("", "")})
		var later laterFickle
		var trailer metadata.MD
		s.play(func(ctx context.Context) error {
			grpc.SetTrailer(ctx, metadata.Pairs("t", "of attempt 1"))
			return errAgain
		})
		_, err := conn.UnaryCall(c.Context(), request("x"), grpc.PerRPCCredentials(&later), grpc.Trailer(&trailer))
		c.Err("unary", err)
		c.MD("trailer", trailer)
	}},
	{43, "interceptors and OnFinish are called once", func(c *C) {
		s := newScript(c)
		unary, stream, finished := 0, 0, 0
		conn := c.Start(Config{Service: s.service(), ServiceConfig: retried("", ""),
			UnaryClient: []grpc.UnaryClientInterceptor{func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
				unary++
				return invoker(ctx, method, req, reply, cc, opts...)
			}},
			StreamClient: []grpc.StreamClientInterceptor{func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
				stream++
				return streamer(ctx, desc, cc, method, opts...)
			}}})
		finish := grpc.OnFinish(func(err error) { finished++; c.lasting("finished", err) })
		for _, n := range []int{2, 9} {
			s.play(again(n)...)
			_, err := conn.UnaryCall(c.Context(), request("x"), finish)
			c.lasting("unary", err)
			s.play(again(n)...)
			o, err := conn.StreamingOutputCall(c.Context(), in("x"), finish)
			c.Err("start", err)
			for err == nil {
				_, err = o.Recv()
			}
			c.lasting("stream", err)
		}
		c.Note("%d unary, %d streams, %d finished", unary, stream, finished)
	}},
	{43, "metadata of the user's own for the attempts", func(c *C) {
		s := newScript(c)
		conn := c.Start(Config{Service: s.service(), ServiceConfig: retried("", "")})
		s.play(again(2)...)
		_, err := conn.UnaryCall(metadata.AppendToOutgoingContext(c.Context(), "grpc-previous-rpc-attempts", "mine"), request("x"))
		c.Err("unary", err)
	}},
	{43, "many calls at once", func(c *C) {
		var mu sync.Mutex
		attempts := map[string]int{}
		conn := c.Start(Config{ServiceConfig: retried("", ""), Service: &Service{
			Unary: func(ctx context.Context, m *pb.SimpleRequest) (*pb.SimpleResponse, error) {
				mu.Lock()
				defer mu.Unlock()
				key := string(m.Payload.Body)
				attempts[key]++
				if attempts[key] < 1+len(key)%4 {
					return nil, errAgain
				}
				return echo(ctx, m)
			}}})
		var all sync.WaitGroup
		var wrong atomic.Int32
		for i := range 40 {
			all.Go(func() {
				text := strings.Repeat("x", i+1)
				m, err := conn.UnaryCall(c.Context(), request(text))
				if err != nil || string(m.Payload.Body) != text {
					wrong.Add(1)
				}
			})
		}
		all.Wait()
		total := 0
		for _, n := range attempts {
			total += n
		}
		c.Note("%d wrong, %d attempts", wrong.Load(), total)
	}},
}

// laterFickle are credentials that fail from the second attempt on.
type laterFickle struct{ asked atomic.Int32 }

func (f *laterFickle) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	if f.asked.Add(1) > 1 {
		return nil, status.Error(codes.Unauthenticated, "expired")
	}
	return nil, nil
}

func (f *laterFickle) RequireTransportSecurity() bool { return false }
