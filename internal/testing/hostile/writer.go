package hostile

import (
	"time"
)

// maxBatch is the most frames in one write.
const maxBatch = 8

// writeAll writes frames until the session ends.
func (s *session) writeAll() {
	var b []byte
	for {
		var n int
		if b, n = s.collect(b[:0]); n == 0 {
			break
		}
		if err := s.pipe.write(b, n); err != nil {
			// The reader gets an error too, after everything that had arrived before.
			return
		}
	}
	s.pipe.close()
}

// collect appends the next frames to b, and returns their number. It waits for the first,
// and returns 0 when the session has ended.
func (s *session) collect(b []byte) ([]byte, int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for n, limit := 0, 1+s.pipe.writeRand.IntN(maxBatch); ; {
		if s.broken {
			return b, 0
		}
		f, ok := s.next()
		switch {
		case ok:
			b = appendFrame(b, &f)
			if n++; n == limit {
				return b, n
			}
		case n > 0:
			return b, n
		case s.bye:
			return b, 0
		default:
			s.writer.Wait(&s.mu, nil)
		}
	}
}

// next returns one of the frames that may be next: the session's next one, or a random
// stream's. DRAIN comes before all others, as one of them could be a refusal because of it.
// The caller holds mu.
func (s *session) next() (frame, bool) {
	if s.drain {
		s.drain = false
		return frame{kind: kindDrain}, true
	}
	streams := len(s.ready)
	if n := len(s.control); n > 0 && s.pipe.writeRand.IntN(streams+1) == 0 {
		f := s.control[0]
		s.control = s.control[1:]
		return f, true
	}
	if streams > 0 {
		i := s.pipe.writeRand.IntN(streams)
		st := s.ready[i]
		f := st.nextFragment()
		if len(st.out) == 0 {
			st.queued = false
			s.ready[i] = s.ready[streams-1]
			s.ready[streams-1] = nil
			s.ready = s.ready[:streams-1]
		}
		return f, true
	}
	if s.bye && !s.saidBye {
		s.saidBye = true
		return frame{kind: kindBye, n: s.last}, true
	}
	return frame{}, false
}

// nextFragment returns a stream's next frame: all of its first item, or a fragment of a
// message. The caller holds the session's mu.
func (st *stream) nextFragment() frame {
	s := st.session
	it := &st.out[0]
	f := frame{kind: it.kind, id: st.id}
	switch it.kind {
	case kindOpen:
		s.last++
		st.id = s.last
		s.streams[st.id] = st
		f = openFrame(it.open, time.Now())
		f.id = st.id
	case kindHeader:
		f.md = it.md
	case kindData:
		f.data = it.data
		if most := max(s.pipe.opts.MaxFragment, len(it.data)/100); len(it.data) > 0 { // so that a large message has only some hundred frames
			f.data = it.data[:min(1+s.pipe.writeRand.IntN(most), len(it.data))]
		}
		if it.data = it.data[len(f.data):]; len(it.data) > 0 {
			return f
		}
		if f.flags = flagLast; it.endSend {
			f.flags |= flagEndSend
		}
	case kindEnd:
		f.md, f.status = it.md, it.status
	case kindReset:
		id := f.id
		f = resetFrame(it.reason)
		f.id = id
	}
	st.out[0] = item{}
	st.out = st.out[1:]
	return f
}
