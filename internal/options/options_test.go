package options

import (
	"math"
	"testing"
	"time"

	"google.golang.org/grpc/keepalive"
)

// Each layer finds the value that applies to it, whether the user has set one, none, or one that is
// too small.
func TestSizesForEachLayer(t *testing.T) {
	type sizes struct{ Local, Stream, Grown, Conn, OverQUIC, Header, OverHTTP int }
	for name, c := range map[string]struct {
		set  func(*Server)
		want sizes
	}{
		"none":     {func(*Server) {}, sizes{64 << 10, 256 << 10, 4 << 20, 2 << 20, 64 << 20, 16 << 20, 64 << 10}},
		"zero":     {func(o *Server) { o.Given.StreamBytes = 1 << 20; o.Given.StreamBytes = 0; o.Given.HeaderBytes = 0 }, sizes{64 << 10, 256 << 10, 4 << 20, 2 << 20, 64 << 20, 16 << 20, 64 << 10}},
		"small":    {func(o *Server) { o.Given.StreamBytes = 1; o.Given.ConnBytes = 1; o.Given.HeaderBytes = 1 }, sizes{64 << 10, 64 << 10, 64 << 10, 64 << 10, 64 << 10, 16 << 10, 1}},
		"negative": {func(o *Server) { o.Given.StreamBytes = -1; o.Given.ConnBytes = -1 }, sizes{64 << 10, 64 << 10, 64 << 10, 2 << 20, 64 << 20, 16 << 20, 64 << 10}},
		"large":    {func(o *Server) { o.Given.StreamBytes = 8 << 20 }, sizes{8 << 20, 8 << 20, 8 << 20, 8 << 20, 64 << 20, 16 << 20, 64 << 10}},
		"largest": {func(o *Server) {
			o.Given.StreamBytes = math.MaxInt32
			o.Given.ConnBytes = 1 << 20
			o.Given.HeaderBytes = math.MaxUint32
		},
			sizes{math.MaxInt32, 1 << 30, 1 << 30, 1 << 30, 1 << 30, math.MaxInt32, math.MaxInt32}},
	} {
		o := NewServer([]ServerOption{SetServer(c.set)})
		if got := (sizes{o.LocalWindow, o.StreamWindow, o.MaxStreamWindow, o.ConnWindow, o.QUICConnWindow, o.MaxHeader, o.MaxHTTPHeader}); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

func TestPingsOfBothSides(t *testing.T) {
	server := func(p keepalive.ServerParameters) *Connections {
		return &NewServer([]ServerOption{SetServer(func(o *Server) { o.Given.Server = p })}).Connections
	}
	client := func(p keepalive.ClientParameters) *Connections {
		return &NewClient([]DialOption{SetClient(func(o *Client) { o.Given.Client = p })}).Connections
	}
	for name, c := range map[string]struct {
		got        *Connections
		want, quic Pings
	}{
		"server":         {server(keepalive.ServerParameters{}), Pings{2 * time.Hour, 20 * time.Second, true}, Pings{0, 30 * time.Second, false}},
		"eager server":   {server(keepalive.ServerParameters{Time: 1, Timeout: 1}), Pings{time.Second, 1, true}, Pings{time.Second, 1, true}},
		"client":         {client(keepalive.ClientParameters{}), Pings{0, 20 * time.Second, false}, Pings{10 * time.Second, 20 * time.Second, false}},
		"eager client":   {client(keepalive.ClientParameters{Time: 1}), Pings{10 * time.Second, 20 * time.Second, false}, Pings{10 * time.Second, 20 * time.Second, false}},
		"patient client": {client(keepalive.ClientParameters{Time: time.Hour, PermitWithoutStream: true}), Pings{time.Hour, 20 * time.Second, true}, Pings{time.Hour, 20 * time.Second, true}},
	} {
		if c.got.Pings != c.want || c.got.QUICPings != c.quic {
			t.Errorf("%s: %+v, over QUIC %+v", name, c.got.Pings, c.got.QUICPings)
		}
	}
}

// The default of MaxConcurrentStreams is for other processes only.
func TestTheLimitOfCallsInProcess(t *testing.T) {
	for name, c := range map[string]struct {
		set           func(*Server)
		local, remote uint32
	}{
		"none": {func(*Server) {}, 0, 1000}, "zero": {func(o *Server) { o.SetMaxStreams(0) }, 0, 0}, "two": {func(o *Server) { o.SetMaxStreams(2) }, 2, 2},
	} {
		o := NewServer([]ServerOption{SetServer(c.set)})
		if local, remote := o.HandlerLimit(true), o.HandlerLimit(false); local != c.local || remote != c.remote {
			t.Errorf("%s: %d in process, %d from others", name, local, remote)
		}
	}
}
