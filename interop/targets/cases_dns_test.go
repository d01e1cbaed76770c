package targets

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
)

func TestDNS(t *testing.T) { run(t, dnsCases) }

// samePort starts the setup's servers at one port, and returns it and their addresses.
func (c *C) samePort() (servers []*Server, ips []string, port string) {
	port = "0"
	for i := range c.Size {
		s := c.NewServer(fmt.Sprint("s", i), i, net.JoinHostPort(nextIP(), port))
		s.Start()
		var ip string
		ip, port, _ = net.SplitHostPort(s.Addr)
		servers, ips = append(servers, s), append(ips, ip)
	}
	c.Call(":"+port, ":PORT")
	return servers, ips, port
}

var dnsCases = []Case{
	{Name: "a name", Run: func(c *C) {
		_, ips, port := c.samePort()
		d := c.NameServer()
		d.Set("svc.test", ips...)
		for _, p := range []string{roundRobin, ""} {
			client := c.Dial("dns://"+d.Addr+"/svc.test:"+port, Options{ServiceConfig: p})
			if p != "" {
				c.Settle(client, c.Size)
				c.Spread("calls", client, 3*c.Size)
			} else {
				c.Note("pick_first reaches %d", reached(c.ctx, client, 6))
			}
			c.Authority("authority", client)
		}
	}},
	{Name: "a service config of a name", Plain: true, Run: func(c *C) {
		s, ips, port := c.samePort()
		d := c.NameServer()
		d.Set("svc.test", ips...)
		for _, choices := range []string{
			`[{"serviceConfig":` + roundRobin + `}]`,
			`[{"clientLanguage":["java"],"serviceConfig":` + pickFirst + `},{"clientLanguage":["GO"],"serviceConfig":` + roundRobin + `}]`,
			`[{"percentage":0,"serviceConfig":` + pickFirst + `},{"clientHostName":["elsewhere"],"serviceConfig":` + pickFirst + `},{"percentage":100,"serviceConfig":` + roundRobin + `}]`,
			`[{"serviceConfig":{"loadBalancingConfig":[{"round_robin":{}}],"methodConfig":[{"name":[{}],"retryPolicy":{"maxAttempts":3,"initialBackoff":"0.001s","maxBackoff":"0.001s","backoffMultiplier":1,"retryableStatusCodes":["UNAVAILABLE"]}}]}}]`,
			`[{"serviceConfig":{"loadBalancingConfig":[{"nobody_knows":{}}]}}]`,
			`[{"serviceConfig":{"methodConfig":[{"name":[{}],"timeout":"0s"}]}}]`,
			`not JSON`,
		} {
			d.Configure("svc.test", choices)
			client := c.Dial("dns://"+d.Addr+"/svc.test:"+port, Options{})
			c.Code(choices, lastly(unary(c.ctx, client)))
			if strings.Contains(choices, "round_robin") {
				c.Settle(client, c.Size)
				c.Spread("calls", client, 3*c.Size)
				c.Code("retries", lastly(unary(c.with("fail-first", "1"), client)))
			} else {
				_, err := unary(c.ctx, client)
				c.Err("again", err)
			}
			client.Close()
			client = c.Dial("dns://"+d.Addr+"/svc.test:"+port, Options{DisableServiceConfig: true})
			c.Note("service config disabled: %d", reached(c.ctx, client, 6))
			client.Close()
		}
		c.Until("connections end", func() bool { return s[0].conns.Load() == 0 })
	}},
	{Name: "a name that is not known", Sizes: []int{1}, Plain: true, Run: func(c *C) {
		_, ips, port := c.samePort()
		d := c.NameServer()
		client := c.Dial("dns://"+d.Addr+"/svc.test:"+port, Options{})
		c.Unary("fail fast", c.ctx, client)
		c.Await(client, connectivity.TransientFailure)
		c.Unary("wait", c.Timeout(20*time.Millisecond), client, grpc.WaitForReady(true))
		d.Set("svc.test", ips...)
		// It is asked again after a backoff.
		c.Until("the name is resolved", func() bool { _, err := unary(c.ctx, client); return err == nil })
		c.Unary("known", c.ctx, client)
	}},
	{Name: "a name server that fails", Sizes: []int{1}, Plain: true, Run: func(c *C) {
		s, ips, port := c.samePort()
		d := c.NameServer()
		d.Set("svc.test", ips...)
		d.Break(true)
		client := c.Dial("dns://"+d.Addr+"/svc.test:"+port, Options{})
		c.Unary("fail fast", c.ctx, client)
		d.Break(false)
		c.Until("the name is resolved", func() bool { _, err := unary(c.ctx, client); return err == nil })
		d.Break(true)
		before := d.queries.Load()
		s[0].Down()
		c.Until("the name server is asked", func() bool { _, _ = unary(c.ctx, client); return d.queries.Load() > before })
		s[0].Start()
		c.Unary("the old address stays", c.ctx, client, grpc.WaitForReady(true))
	}},
	{Name: "a name without addresses", Sizes: []int{1}, Plain: true, Run: func(c *C) {
		d := c.NameServer()
		d.Set("svc.test")
		client := c.Dial("dns://"+d.Addr+"/svc.test:80", Options{})
		c.Unary("fail fast", c.ctx, client)
		c.Await(client, connectivity.TransientFailure)
	}},
	{Name: "a name whose addresses change", Sizes: []int{3}, Plain: true, Run: func(c *C) {
		s, ips, port := c.samePort()
		d := c.NameServer()
		d.Set("svc.test", ips[0], ips[1])
		client := c.Dial("dns://"+d.Addr+"/svc.test:"+port, Options{ServiceConfig: roundRobin})
		c.Settle(client, 2)
		c.Spread("two", client, 6)
		d.Set("svc.test", ips[1], ips[2])
		before := d.queries.Load()
		c.Spread("nothing asks", client, 6)
		c.Note("%d more queries", d.queries.Load()-before)
		s[0].Down()
		c.Until("the third serves calls", func() bool { _, err := unary(c.ctx, client); return err == nil && s[2].calls.Load() > 0 })
		c.Settle(client, 2)
		c.Note("two others: %d", reached(c.ctx, client, 6))
	}},
	{Name: "addresses instead of names", Sizes: []int{1}, Plain: true, Run: func(c *C) {
		s, _, port := c.samePort()
		d := c.NameServer()
		client := c.Dial("dns:///"+s[0].Addr, Options{})
		c.Unary("address", c.ctx, client)
		c.Authority("authority", client)
		client = c.Dial("dns://"+d.Addr+"/"+s[0].Addr, Options{})
		c.Unary("address with a name server", c.ctx, client)
		client = c.Dial(s[0].Addr, Options{})
		c.Unary("no scheme", c.ctx, client)
		client = c.Dial("dns:///localhost:"+port, Options{Dialer: c.dialTo(s[0])})
		c.Unary("a dialer", c.ctx, client)
		c.Note("%d queries", d.queries.Load())
		ip := nextIP()
		c.Call(ip, "IP")
		client = c.Dial("dns:///"+ip, Options{Backoff: never})
		c.Unary("no port", c.ctx, client)
		c.malformed("dns:///[::1", "dns://:53/svc", "dns://name server/svc")
	}},
	{Name: "malformed names", Sizes: []int{1}, Plain: true, Differs: "grpc-go parses the target a second time, for proxies, and its errors begin with delegating_resolver", Run: func(c *C) {
		c.malformed("dns:///", "dns:///svc:")
	}},
	{Name: "a name after idle", Sizes: []int{1}, Plain: true, Run: func(c *C) {
		_, ips, port := c.samePort()
		d := c.NameServer()
		d.Set("svc.test", ips...)
		client := c.Dial("dns://"+d.Addr+"/svc.test:"+port, Options{IdleTimeout: 20 * time.Millisecond})
		c.Note("before a call: %d queries", d.queries.Load())
		for range 2 {
			c.Unary("call", c.ctx, client)
			c.Await(client, connectivity.Idle)
			c.Note("%d queries", d.queries.Load())
		}
	}},
}

func lastly(_ string, err error) error { return err }

// malformed notes the errors of targets.
func (c *C) malformed(targets ...string) {
	for _, target := range targets {
		client, err := c.TryDial(target, Options{})
		c.Err("dial "+target, err)
		if err == nil {
			c.Unary("call", c.ctx, client)
		}
	}
}
