package mux

import (
	"fmt"
	"time"

	"github.com/nearcall/nearcall/internal/encoded"
	"github.com/nearcall/nearcall/internal/wire"
)

// maxOwed bounds the control frames, such as PONG, RESET and CREDIT, that wait for a
// peer which does not read, in bytes.
const maxOwed = 4 << 20

// checkOwed fails if the peer keeps sending frames that need an answer but does not
// read the answers. mu is held.
func (s *Session) checkOwed() error {
	if n := len(s.writing.control) + len(s.drain.pongs); n > maxOwed {
		return fmt.Errorf("the peer does not read the %d bytes that it is owed", n)
	}
	return nil
}

func (s *Session) handleHello(body []byte) error {
	h, err := wire.ParseHello(body)
	if err != nil {
		return err
	}
	if s.reading.isMet {
		return protocolError("the peer says hello twice")
	}
	var after callbacks
	s.mu.Lock()
	if s.writing.broken == nil {
		_ = s.conn.SetReadDeadline(time.Time{})
	}
	for st := s.live.first; st != nil; st = st.nextLive {
		st.flow.Credit += h.Stream - s.hello.Stream // cannot overflow: no CREDIT is accepted before HELLO
		after.unpark(s.wake(&st.sender))
		st.schedule()
	}
	err = addCredit(&s.writing.connOut, h.Connection-s.hello.Connection)
	s.hello, s.reading.isMet = h, true
	s.mu.Unlock()
	after.run()
	close(s.helloReceived)
	return err
}

// handleControl handles the frames that carry no part of a call. mu is held.
func (s *Session) handleControl(f wire.Frame, after *callbacks) error {
	switch f.Kind {
	case wire.KindCredit:
		n, err := wire.ParseCredit(f.Body)
		if err != nil {
			return err
		}
		if f.Stream == 0 {
			return addCredit(&s.writing.connOut, n)
		}
		st, err := s.lookup(f.Stream)
		if st != nil {
			if err := addCredit(&st.flow.Credit, n); err != nil {
				return err
			}
			st.schedule()
			if st.takesMore() { // otherwise its sender would wake in vain for each byte of credit
				after.unpark(s.wake(&st.sender))
			}
		}
		return err
	case wire.KindReset:
		code, text, err := wire.ParseReset(f.Body)
		if err != nil {
			return err
		}
		st, err := s.lookup(f.Stream)
		if st != nil {
			if !st.caller {
				s.countReset()
			}
			st.abortUnread(encoded.ReasonOf(code, text, st.answered), after)
		}
		return err
	case wire.KindPing:
		data, err := wire.ParsePing(f.Body)
		if err != nil {
			return err
		}
		return s.handlePing(data)
	case wire.KindReturn:
		at, err := wire.ParseReturn(f.Body)
		if err == nil && s.placer == nil {
			err = protocolError("a place is returned where there are none")
		}
		if err == nil {
			if wrong := s.placer.Returned(at); wrong != nil {
				err = fmt.Errorf("%w: %w", wire.ErrProtocol, wrong)
			}
		}
		return err
	case wire.KindPong:
		data, err := wire.ParsePing(f.Body)
		if err == nil {
			s.handlePong(data)
		}
		return err
	case wire.KindDrain:
		last, err := wire.ParseDrain(f.Body)
		if err != nil {
			return err
		}
		return s.handleDrain(last, after)
	case wire.KindBye:
		code, text, err := wire.ParseBye(f.Body)
		if err != nil {
			return err
		}
		return &farewell{code, text}
	}
	return nil // the kinds left over are extensions, which are ignored
}

// A farewell is the peer's BYE, as an error.
type farewell struct {
	code wire.ByeCode
	text string
}

func (f *farewell) Error() string {
	if f.text == "" {
		return "the peer ended the connection"
	}
	return f.text
}
