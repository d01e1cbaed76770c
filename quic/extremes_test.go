package quic

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/lifecycle"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/registry"
)

// lasts makes a call, and two minutes later another one, and reports whether both take one
// connection.
func lasts(t *testing.T, client keepalive.ClientParameters, opts ...nearcall.ServerOption) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		n := plainNetwork(t)
		config, _ := testTLS()
		serveOn(t, n.lis, service{}, append(opts, nearcall.Creds(nearcall.NewTLS(config)))...)
		c := dial(t, "inproc:unused", options.WithDialer(n.dialer(t, &registry.Settings{Config: clientOptions(nearcall.WithKeepaliveParams(client))})))
		for range 2 {
			if _, err := c.UnaryCall(t.Context(), empty); err != nil {
				t.Error(err)
			}
			time.Sleep(2 * time.Minute)
		}
		if n.next != 1 {
			t.Errorf("%d connections", n.next)
		}
	})
}

// A connection lasts while its ages and its keepalive mean never.
func TestDurationsThatMeanNever(t *testing.T) {
	for _, never := range []time.Duration{math.MinInt64, -1, 0, math.MaxInt64 - 1, math.MaxInt64} {
		lasts(t, keepalive.ClientParameters{}, nearcall.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: never, MaxConnectionAge: never}))
	}
	for _, d := range []time.Duration{0, 1, math.MaxInt64 - 1, math.MaxInt64} {
		lasts(t, keepalive.ClientParameters{Time: 1, Timeout: d})
		lasts(t, keepalive.ClientParameters{Time: d, Timeout: d})
		lasts(t, keepalive.ClientParameters{Time: math.MaxInt64}, nearcall.KeepaliveParams(keepalive.ServerParameters{Time: d, Timeout: d}))
	}
	for _, d := range []time.Duration{math.MaxInt64 - 1, math.MaxInt64} {
		lasts(t, keepalive.ClientParameters{}, nearcall.ConnectionTimeout(d))
	}
}

// As in grpc-go, no connection succeeds if a server gives it no time.
func TestNoTimeToConnect(t *testing.T) {
	for _, d := range []time.Duration{math.MinInt64, -1, 0} {
		synctest.Test(t, func(t *testing.T) {
			n := plainNetwork(t)
			config, _ := testTLS()
			serveOn(t, n.lis, service{}, nearcall.ConnectionTimeout(d), nearcall.Creds(nearcall.NewTLS(config)))
			c := dial(t, "inproc:unused", options.WithDialer(n.dialer(t, &registry.Settings{})))
			if _, err := c.UnaryCall(t.Context(), empty); status.Code(err) != codes.Unavailable {
				t.Errorf("with %v: %v", d, err)
			}
		})
	}
}

// quic-go gets no timeout that it cannot add to its clock, and none that it takes for its default.
func TestConfigOfAnyDurations(t *testing.T) {
	durations := []time.Duration{math.MinInt64, -1, 0, 1, time.Second, math.MaxInt64 - 1, math.MaxInt64}
	for _, period := range durations {
		for _, timeout := range durations {
			c := config(clientOptions(nearcall.WithKeepaliveParams(keepalive.ClientParameters{Time: period, Timeout: timeout})))
			s := config(serverOptions(nearcall.ConnectionTimeout(timeout), nearcall.KeepaliveParams(keepalive.ServerParameters{Time: period, Timeout: timeout})))
			for _, c := range []struct{ idle, period, handshake time.Duration }{
				{c.MaxIdleTimeout, c.KeepAlivePeriod, c.HandshakeIdleTimeout}, {s.MaxIdleTimeout, max(s.KeepAlivePeriod, time.Second), s.HandshakeIdleTimeout},
			} {
				if c.idle < c.period || c.idle > never || c.period < time.Second || c.handshake <= 0 || c.handshake > handshake/2 {
					t.Errorf("Time %v and Timeout %v: %+v", period, timeout, c)
				}
			}
			for _, w := range []lifecycle.Silence{silenceOf(c), silenceOf(s)} {
				if every := w.Every(); every < time.Second/12 || w.Probe+w.Limit < 0 {
					t.Errorf("Time %v and Timeout %v: %+v checks every %v", period, timeout, w, every)
				}
			}
		}
	}
}
