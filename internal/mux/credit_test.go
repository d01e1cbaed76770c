package mux

import (
	"bytes"
	"testing"
	"testing/synctest"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wire"
)

// TestPlacedMessageMayExceedCredit checks that a call whose
// credit a placed message has made negative continues once credit is returned, also on
// 32-bit systems.
func TestPlacedMessageMayExceedCredit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &witness{}
		cs, ss, _, _ := shelved(t, 100, Options{Client: true}, Options{}, w)
		caller, callee := callOver(t, cs, w)
		const size = 16 * wire.MinWindow
		for range 3 {
			send(t, caller, make([]byte, size))
			synctest.Wait()
			if credit := caller.(*stream).flow.Credit; credit >= 0 {
				t.Fatalf("%d bytes of credit are left: the message did not take more than there was", credit)
			}
			if n, err := received(t, callee, size); n != size || err != nil {
				t.Fatalf("%d bytes, %v", n, err)
			}
		}
		even(t, cs, ss, [2]*stream{caller.(*stream), callee.(*stream)})
	})
}

// TestCreditMayBeMoreThanMemory checks that credit can add up to 2^62 bytes, also on
// 32-bit systems.
func TestCreditMayBeMoreThanMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, peer := lone(t, Options{Client: true}, nil, false)
		const much = 1 << 40
		peer.write(wire.AppendHello([]byte(wire.Magic), &wire.Hello{Version: 1, Stream: much, Connection: much, Block: wire.MinBlock}))
		st, err := s.NewStream(t.Context(), &link.CallHeader{Method: "/a/b", Profile: &link.Profile{}})
		if err != nil {
			t.Fatal(err)
		}
		message := noise(3 * wire.MinWindow)
		send(t, st, message)
		synctest.Wait()
		peer.write(wire.AppendCredit(nil, 0, much), wire.AppendCredit(nil, 1, much))
		send(t, st, message)
		synctest.Wait()
		const spent = 2 * (3*wire.MinWindow + wire.MessageCost)
		if got := st.(*stream).flow.Credit; got != 2*much-spent {
			t.Errorf("the call has %d bytes of credit", got)
		}
		if s.writing.connOut != 2*much-spent {
			t.Errorf("the connection has %d bytes of credit", s.writing.connOut)
		}
		var got []byte
		for _, f := range peer.of(wire.KindStream) {
			got = append(got, f.Body...)
		}
		if bytes.Count(got, message[:64]) != 2 {
			t.Error("the peer was not sent the two messages")
		}
	})
}
