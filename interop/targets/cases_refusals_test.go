package targets

import (
	"io"
	"net"
	"sync/atomic"
	"testing"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/status"
)

func TestRefusals(t *testing.T) { run(t, refusalCases) }

// A call that each server refuses is made twice at most, however long it may last.
var refusalCases = []Case{
	{Name: "servers that refuse each call", Fleets: []kind{ordinary}, Sizes: []int{1}, Plain: true, Run: func(c *C) {
		for name, refuse := range map[string]func(*http2.Framer, uint32){
			"GOAWAY":         func(fr *http2.Framer, _ uint32) { _ = fr.WriteGoAway(0, http2.ErrCodeNo, nil) },
			"REFUSED_STREAM": func(fr *http2.Framer, id uint32) { _ = fr.WriteRSTStream(id, http2.ErrCodeRefusedStream) },
		} {
			for _, policy := range []string{pickFirst, roundRobin} {
				for _, wait := range []bool{false, true} {
					own := c.Named(name)
					address, streams := c.refusing(refuse)
					client, _ := c.Balance(policy, []resolver.Address{address})
					_, err := unary(c.ctx, client, grpc.WaitForReady(wait))
					own.Note("%s, wait %v, unary: fails %v, made twice at most %v", policy, wait, err != nil, streams.Swap(0) <= 2) // grpc-go's code varies
					st, err := pb.NewTestServiceClient(client).FullDuplexCall(c.ctx, grpc.WaitForReady(wait))
					if err == nil {
						_, err = st.Recv()
					}
					own.Note("%s, wait %v, stream: %v, made twice at most %v", policy, wait, status.Code(err), streams.Swap(0) <= 2)
				}
			}
		}
	}},
}

// refusing returns the address of a server that refuses each stream, and how many it has refused.
func (c *C) refusing(refuse func(*http2.Framer, uint32)) (resolver.Address, *atomic.Int32) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	c.Cleanup(func() { _ = lis.Close() })
	c.Call(lis.Addr().String(), "refusing")
	streams := new(atomic.Int32)
	serve := func(conn net.Conn) {
		defer conn.Close()
		if _, err := io.ReadFull(conn, make([]byte, len(http2.ClientPreface))); err != nil {
			return
		}
		fr := http2.NewFramer(conn, conn)
		_ = fr.WriteSettings()
		for {
			f, err := fr.ReadFrame()
			if err != nil {
				return
			}
			switch f := f.(type) {
			case *http2.SettingsFrame:
				if !f.IsAck() {
					_ = fr.WriteSettingsAck()
				}
			case *http2.PingFrame:
				if !f.IsAck() {
					_ = fr.WritePing(true, f.Data)
				}
			case *http2.HeadersFrame:
				streams.Add(1)
				refuse(fr, f.StreamID)
			}
		}
	}
	go func() {
		for {
			conn, err := lis.Accept()
			if err != nil {
				return
			}
			go serve(conn)
		}
	}()
	return resolver.Address{Addr: lis.Addr().String()}, streams
}
