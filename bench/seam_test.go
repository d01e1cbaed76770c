package main

import (
	"context"
	"testing"

	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/protobuf/proto"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/call/server"
	"github.com/nearcall/nearcall/internal/codec"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/message"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/transport/inproc"
)

// BenchmarkSeam measures an empty call with more of nearcall at each step, to show what each
// layer costs. Messages are empty and the context is Background, so the handler runs on the
// caller's goroutine.
//
//	step=function   the service's method
//	step=clone      the same with copied messages
//	step=link       link.Session.Call in process, answered by a minimal link.Acceptor
//	step=server     the same, answered by the server side of package call
//	step=client     everything: the generated stub over Server.Client
func BenchmarkSeam(b *testing.B) {
	for _, step := range seam {
		b.Run("step="+step.name, func(b *testing.B) {
			do, end := step.open(b)
			defer end()
			b.ReportAllocs()
			for b.Loop() {
				if err := do(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func TestSeam(t *testing.T) {
	for _, step := range seam {
		t.Run("step="+step.name, func(t *testing.T) {
			do, end := step.open(t)
			defer end()
			if err := do(); err != nil {
				t.Error(err)
			}
		})
	}
}

var seam = []struct {
	name string
	open func(testing.TB) (do func() error, end func())
}{
	{"function", func(testing.TB) (func() error, func()) {
		var s testpb.TestServiceServer = service{}
		in := new(testpb.Empty)
		return func() error {
			_, err := s.EmptyCall(context.Background(), in)
			return err
		}, func() {}
	}},
	{"clone", func(testing.TB) (func() error, func()) {
		var s testpb.TestServiceServer = service{}
		in := new(testpb.Empty)
		return func() error {
			out, err := s.EmptyCall(context.Background(), proto.CloneOf(in))
			if err == nil {
				_ = proto.CloneOf(out)
			}
			return err
		}, func() {}
	}},
	{"link", func(tb testing.TB) (func() error, func()) {
		return overLink(tb, func(link.Session) link.Acceptor { return barely{service{}} }, func() {})
	}},
	{"server", func(tb testing.TB) (func() error, func()) {
		srv := server.New(options.NewServer([]options.ServerOption{nearcall.MaxRecvMsgSize(maxRecv)}), server.Config{})
		srv.Register(&testpb.TestService_ServiceDesc, service{}, nil)
		return overLink(tb, srv.Accept, srv.Stop)
	}},
	{"client", func(testing.TB) (func() error, func()) {
		srv := nearcall.NewServer()
		testpb.RegisterTestServiceServer(srv, service{})
		conn := srv.Client()
		client := testpb.NewTestServiceClient(conn)
		in := new(testpb.Empty)
		return func() error {
				_, err := client.EmptyCall(context.Background(), in)
				return err
			}, func() {
				_ = conn.Close()
				srv.Stop()
			}
	}},
}

var profile link.Profile

const maxRecv = 4 << 20 // gRPC's default

// overLink makes calls as the client of package call does, without enforcing gRPC's rules.
func overLink(tb testing.TB, accept func(link.Session) link.Acceptor, stop func()) (do func() error, end func()) {
	session, err := inproc.Connect("seam", inproc.Options{Config: &options.NewClient(nil).Connections}, accept)
	if err != nil {
		tb.Fatal(err)
	}
	in, protobuf := new(testpb.Empty), codec.Proto()
	do = func() error {
		c := session.Peer().NewCall()
		c.Method, c.Profile = testpb.TestService_EmptyCall_FullMethodName, &profile
		c.Codec, c.Request, c.Reply, c.MaxReply = protobuf, in, new(testpb.Empty), maxRecv
		if err := session.Invoke(context.Background(), c); err != nil {
			return err
		}
		if !c.Replied {
			return c.Status.Err()
		}
		return nil
	}
	end = func() {
		_ = session.Close(context.Canceled)
		stop()
	}
	return do, end
}

// barely is a minimal inproc.UnaryAcceptor.
type barely struct{ service testpb.TestServiceServer }

func (barely) NewCall() *inproc.Call {
	n := new(nobody)
	n.call.Shared = n
	return &n.call
}

func (a barely) HandleUnary(c *inproc.Call) error {
	in, protobuf := new(testpb.Empty), codec.Proto()
	if err := c.Take(&message.Sink{Dst: in, Codec: protobuf, Limit: maxRecv}); err != nil {
		return err
	}
	out, err := a.service.EmptyCall(context.Background(), in)
	if err != nil {
		return err
	}
	reply := message.Live(out, protobuf)
	return c.Send(nil, &reply, &link.End{})
}

func (barely) HandleStream(link.Stream, *link.CallHeader) error { return link.ErrNoCall }
func (barely) Closed(error)                                     {}
func (barely) Gone()                                            {}
func (barely) Terms() link.Terms                                { return link.Terms{} }

type nobody struct{ call inproc.Call }

func (n *nobody) Call() *inproc.Call { return &n.call }

func (*nobody) Aborted(error) {}
