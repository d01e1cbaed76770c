package quic

import (
	"context"
	"io"
	"testing"

	q "github.com/quic-go/quic-go"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/nearcall/nearcall"
)

// The benchmarks compare a call with an echo on a raw stream of quic-go.

func BenchmarkUnary(b *testing.B)    { benchmarkUnary(b, 100) }
func BenchmarkUnary60K(b *testing.B) { benchmarkUnary(b, 60_000) }

func benchmarkUnary(b *testing.B, size int) {
	_, target := serve(b, service{})
	client := dial(b, target)
	in := payload(size)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := client.UnaryCall(context.Background(), in); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkUnaryTLS is the same call over TCP with TLS.
func BenchmarkUnaryTLS(b *testing.B) {
	lis, err := nearcall.Listen("tcp:127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	config, _ := testTLS()
	serveOn(b, lis, service{}, nearcall.Creds(nearcall.NewTLS(config)))
	client := dial(b, lis.Target())
	in := payload(100)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := client.UnaryCall(context.Background(), in); err != nil {
			b.Fatal(err)
		}
	}
}

// rawPair returns a client's connection to a server that passes its streams to handle.
func rawPair(b *testing.B, handle func(*q.Stream)) *q.Conn {
	there, here := testTLS()
	there.NextProtos, here.NextProtos = []string{"raw"}, []string{"raw"}
	ln, err := q.ListenAddr("127.0.0.1:0", there, &q.Config{MaxIncomingStreams: 1000})
	if err != nil {
		b.Fatal(err)
	}
	go func() {
		c, err := ln.Accept(context.Background())
		if err != nil {
			return
		}
		for {
			s, err := c.AcceptStream(context.Background())
			if err != nil {
				return
			}
			go handle(s)
		}
	}()
	c, err := q.DialAddr(b.Context(), ln.Addr().String(), here, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = c.CloseWithError(0, "")
		_ = ln.Close()
	})
	return c
}

func BenchmarkUnaryRaw(b *testing.B) {
	c := rawPair(b, func(s *q.Stream) {
		var buf [256]byte
		n, _ := s.Read(buf[:])
		_, _ = s.Write(buf[:n])
		_ = s.Close()
		_, _ = s.Read(buf[:])
	})
	var buf [256]byte
	b.ReportAllocs()
	for b.Loop() {
		s, err := c.OpenStreamSync(context.Background())
		if err != nil {
			b.Fatal(err)
		}
		_, _ = s.Write(buf[:100])
		_ = s.Close()
		if _, err = io.ReadFull(s, buf[:100]); err != nil {
			b.Fatal(err)
		}
		_, _ = s.Read(buf[:])
	}
}

func BenchmarkBidi(b *testing.B) {
	_, target := serve(b, service{stream: func(st testpb.TestService_FullDuplexCallServer) error {
		for {
			in, err := st.Recv()
			if err != nil {
				return nil
			}
			if err := st.Send(&testpb.StreamingOutputCallResponse{Payload: in.Payload}); err != nil {
				return err
			}
		}
	}})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	st, err := dial(b, target).FullDuplexCall(ctx)
	if err != nil {
		b.Fatal(err)
	}
	in := &testpb.StreamingOutputCallRequest{Payload: payload(100).Payload}
	b.ReportAllocs()
	for b.Loop() {
		if err := st.Send(in); err != nil {
			b.Fatal(err)
		}
		if _, err := st.Recv(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkBidiRaw(b *testing.B) {
	c := rawPair(b, func(s *q.Stream) { _, _ = io.Copy(s, s) })
	s, err := c.OpenStreamSync(context.Background())
	if err != nil {
		b.Fatal(err)
	}
	var buf [256]byte
	b.ReportAllocs()
	for b.Loop() {
		_, _ = s.Write(buf[:100])
		if _, err = io.ReadFull(s, buf[:100]); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkUnaryMiB(b *testing.B) {
	_, target := serve(b, service{})
	client := dial(b, target)
	in := payload(1 << 20)
	b.SetBytes(2 << 20)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := client.UnaryCall(context.Background(), in); err != nil {
			b.Fatal(err)
		}
	}
}
