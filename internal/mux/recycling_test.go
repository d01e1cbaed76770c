package mux

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wire"
)

// used reports whether st still belongs to a call. It is used when all goroutines wait.
func used(st link.Stream) bool { return st.(*stream).session != nil }

// The stream of a call of the peer is used again when its last holder has dropped it, whichever
// that is, and only if the callee has ended the call.
func TestTheStreamOfAnEndedCallIsUsedAgain(t *testing.T) {
	reset := wire.AppendReset(nil, 1, wire.ResetCancelled, "")
	end := func(st link.Stream) { _ = st.Send(&link.Frame{End: &link.End{}}) }
	free := func(st link.Stream) { st.(link.Freer).Free() }
	abort := func(st link.Stream) { st.Abort(errors.New("an error")) }
	for name, c := range map[string]struct {
		handler func(st link.Stream, peer *raw)
		again   bool
	}{
		"ended and freed":          {func(st link.Stream, _ *raw) { end(st); free(st) }, true},
		"ended, written and freed": {func(st link.Stream, _ *raw) { end(st); synctest.Wait(); free(st) }, true},
		"ended after a header and freed": {func(st link.Stream, p *raw) {
			_ = st.Send(&link.Frame{Header: metadata.MD{}})
			synctest.Wait()
			end(st)
			synctest.Wait()
			if !used(st) {
				p.Error("it is used again before the acceptor has freed it")
			}
			free(st)
		}, true},
		"ended with a reply that waits for credit, and freed": {func(st link.Stream, p *raw) {
			_ = st.Send(&link.Frame{Msg: ofBytes(2 * wire.MinWindow), HasMsg: true, End: &link.End{}})
			synctest.Wait()
			free(st)
			if !used(st) {
				p.Error("it is used again before the reply was written")
			}
			p.write(wire.AppendCredit(wire.AppendCredit(nil, 0, 1<<20), 1, 1<<20))
			synctest.Wait()
		}, true},
		"ended and not freed":           {func(st link.Stream, _ *raw) { end(st) }, false},
		"ended, freed and reset":        {func(st link.Stream, p *raw) { end(st); free(st); synctest.Wait(); p.write(reset) }, true},
		"reset and freed":               {func(st link.Stream, p *raw) { p.write(reset); synctest.Wait(); free(st) }, false},
		"reset, ended and freed":        {func(st link.Stream, p *raw) { p.write(reset); synctest.Wait(); end(st); free(st) }, false},
		"aborted and freed":             {func(st link.Stream, _ *raw) { abort(st); free(st) }, false},
		"ended, aborted late and freed": {func(st link.Stream, _ *raw) { end(st); abort(st); free(st) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := new(witness)
				s, peer := loneWith(t, Options{}, w, false)
				peer.write(start())
				peer.write(asked(1))
				synctest.Wait()
				st := w.streams[0]
				c.handler(st, peer)
				synctest.Wait()
				if again := !used(st); again != c.again {
					t.Errorf("it is used again: %v, want %v", again, c.again)
				}
				empty(t, s)
			})
		})
	}
}

// A callee may end and free a call before HandleStream has returned, and while it runs on the
// read loop, which compares its stream with the running call afterwards.
func TestAStreamIsNotUsedAgainWhileTheSessionHoldsIt(t *testing.T) {
	for name, handle := range map[string]func(t *testing.T, st link.Stream){
		"in HandleStream": nil,
		"on the read loop": func(t *testing.T, st link.Stream) {
			finishes(nil, st)
			st.(link.Freer).Free()
			time.Sleep(time.Millisecond)
			if !used(st) {
				t.Error("it is used again while the read loop runs its handler")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var st link.Stream
				var acceptor link.Acceptor = accepts(func(s link.Stream) error {
					st = s
					if handle != nil {
						s.(link.InlineStream).RunInline(runs(func() { handle(t, s) }), 0)
						return nil
					}
					finishes(nil, s)
					s.(link.Freer).Free()
					time.Sleep(time.Millisecond)
					if !used(s) {
						t.Error("it is used again before HandleStream has returned")
					}
					return nil
				})
				s, peer := loneWith(t, Options{}, acceptor, false)
				peer.write(start())
				peer.write(asked(1))
				time.Sleep(2 * time.Millisecond)
				peer.answers(1)
				if used(st) {
					t.Error("it is not used again")
				}
				empty(t, s)
			})
		})
	}
}

// accepts is an Acceptor of streams.
type accepts func(link.Stream) error

func (f accepts) HandleUnary(*link.UnaryCall, bool) error              { return link.ErrNoCall }
func (f accepts) HandleStream(s link.Stream, _ *link.CallHeader) error { return f(s) }
func (accepts) Terms() link.Terms                                      { return link.Terms{} }
func (accepts) Closed(error)                                           {}
func (accepts) Gone()                                                  {}
