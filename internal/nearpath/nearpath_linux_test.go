package nearpath

import (
	"errors"
	"net"
	"net/netip"
	"testing"

	"github.com/nearcall/nearcall/internal/mux"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/testing/leak"
	"github.com/nearcall/nearcall/internal/wire"
)

func TestMain(m *testing.M) { leak.Main(m) }

func TestOnlyAddressesOfThisHostAreOnIt(t *testing.T) {
	for near, far := range map[string]map[string]bool{
		"127.0.0.1": {"127.0.0.1": true, "127.0.0.9": true},
		"::1":       {"::1": true},
		"192.0.2.1": {"192.0.2.1": true, "198.51.100.7": false, "2001:db8::1": false},
		"fe80::1%1": {"fe80::1%1": false},
	} {
		for far, want := range far {
			if got := onThisHost(netip.MustParseAddr(near), netip.MustParseAddr(far)); got != want {
				t.Errorf("%s to %s: %v, want %v", near, far, got, want)
			}
		}
	}
	if onThisHost(netip.Addr{}, netip.Addr{}) {
		t.Error("no address is on this host")
	}
	all, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		own, _ := netip.AddrFromSlice(a.(*net.IPNet).IP)
		if own = own.Unmap(); !own.IsLinkLocalUnicast() && !onThisHost(netip.MustParseAddr("127.0.0.1"), own) {
			t.Errorf("%v is not on this host", own)
		}
	}
}

// What introduces a client is parsed as it was written, or not at all.
func FuzzIntroduction(f *testing.F) {
	e := ends{Client: netip.MustParseAddrPort("127.0.0.1:1234"), Server: netip.MustParseAddrPort("[2001:db8::1]:65535")}
	f.Add(appendIntroduction(nil, newNonce(), e))
	f.Add([]byte(introductionLine))
	f.Fuzz(func(t *testing.T, b []byte) {
		n, e, err := parseIntroduction(b)
		if err != nil {
			if !errors.Is(err, wire.ErrProtocol) {
				t.Error(err)
			}
			return
		}
		again, same, err := parseIntroduction(appendIntroduction(nil, n, e))
		if err != nil || again != n || same != e {
			t.Errorf("%v %v became %v %v, %v", n, e, again, same, err)
		}
	})
}

// What a client or a server says first never makes the other side read beyond it or fail.
func FuzzGreeting(f *testing.F) {
	f.Add(mux.Options{Config: &options.NewServer(nil).Connections}.Greeting(true, wire.FeatureNear, string(make([]byte, 16))+"name"))
	f.Add(mux.Options{Config: &options.NewClient(nil).Connections, Client: true}.Greeting(false, 0, ""))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, n := helloOf(b)
		if n > len(b) || n == 0 && h != (wire.Hello{}) {
			t.Errorf("%d of %d bytes are %+v", n, len(b), h)
		}
		if n, name, ok := offerOf(h.Near); ok && string(n[:])+name != h.Near {
			t.Errorf("%q became %x and %q", h.Near, n, name)
		}
	})
}
