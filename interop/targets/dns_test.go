package targets

import (
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/net/dns/dnsmessage"
)

// A nameServer answers queries for addresses and service configs. It does not know the other names.
type nameServer struct {
	Addr    string
	queries atomic.Int64 // for A records

	mu      sync.Mutex
	ips     map[string][]string // by name, without the last dot
	configs map[string]string
	broken  bool // it answers SERVFAIL
}

// NameServer starts a DNS server on UDP.
func (c *C) NameServer() *nameServer {
	conn, err := net.ListenPacket("udp", nextIP()+":0")
	if err != nil {
		panic(err)
	}
	d := &nameServer{Addr: conn.LocalAddr().String(), ips: map[string][]string{}, configs: map[string]string{}}
	c.Call(d.Addr, "NAMESERVER")
	done := make(chan struct{})
	c.Cleanup(func() {
		conn.Close()
		<-done
	})
	go func() {
		defer close(done)
		buf := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			if answer := d.answer(buf[:n]); answer != nil {
				_, _ = conn.WriteTo(answer, from)
			}
		}
	}()
	return d
}

// Set sets the addresses of a name.
func (d *nameServer) Set(name string, ips ...string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ips[name] = ips
}

// Configure sets the service config of a name, as a list of choices.
func (d *nameServer) Configure(name, choices string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.configs["_grpc_config."+name] = choices
}

// Break makes the server fail, or not.
func (d *nameServer) Break(broken bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.broken = broken
}

func (d *nameServer) answer(query []byte) []byte {
	var m dnsmessage.Message
	if m.Unpack(query) != nil || len(m.Questions) != 1 {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	q := m.Questions[0]
	name := strings.TrimSuffix(q.Name.String(), ".")
	m.Header.Response, m.Header.Authoritative, m.Header.RecursionAvailable, m.Additionals = true, true, true, nil
	head := dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: 1}
	add := func(body dnsmessage.ResourceBody) {
		m.Answers = append(m.Answers, dnsmessage.Resource{Header: head, Body: body})
	}
	switch q.Type {
	case dnsmessage.TypeA:
		d.queries.Add(1)
		for _, ip := range d.ips[name] {
			add(&dnsmessage.AResource{A: [4]byte(net.ParseIP(ip).To4())})
		}
	case dnsmessage.TypeTXT:
		// A string of a record has at most 255 bytes.
		if text := d.configs[name]; text != "" {
			var parts []string
			for text = "grpc_config=" + text; text != ""; {
				n := min(len(text), 255)
				parts, text = append(parts, text[:n]), text[n:]
			}
			add(&dnsmessage.TXTResource{TXT: parts})
		}
	}
	_, known := d.ips[name]
	switch {
	case d.broken:
		m.Answers, m.Header.RCode = nil, dnsmessage.RCodeServerFailure
	case !known && d.configs[name] == "":
		m.Header.RCode = dnsmessage.RCodeNameError
	}
	out, err := m.Pack()
	if err != nil {
		panic(fmt.Sprintf("cannot answer for %s: %v", name, err))
	}
	return out
}
