package hostile

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// A pipe is one side's end of the connection under a session. One goroutine writes to it
// and one reads from it.
type pipe struct {
	conn net.Conn
	opts Options
	in   *bufio.Reader
	both *shared

	readRand, writeRand *rand.Rand // the reader's and the writer's
}

// shared is the state that both ends of a pipe share.
type shared struct {
	frames atomic.Int64  // number of frames written
	hurry  chan struct{} // closed when an end closes: no more pauses
	once   sync.Once
}

// errHangUp is the error of a session whose pipe breaks.
var errHangUp = errors.New("the peer hung up")

func newPipe(conn net.Conn, o Options, side uint64, both *shared) *pipe {
	return &pipe{
		conn:      conn,
		opts:      o,
		in:        bufio.NewReader(conn),
		both:      both,
		readRand:  rand.New(rand.NewPCG(o.Seed, 2*side)),
		writeRand: rand.New(rand.NewPCG(o.Seed, 2*side+1)),
	}
}

// pause does nothing, yields to other goroutines, or sleeps for at most opts.Delay.
func (p *pipe) pause(r *rand.Rand) {
	if p.opts.Delay <= 0 {
		return
	}
	switch r.IntN(4) {
	case 0:
		t := time.NewTimer(time.Duration(1 + r.Int64N(int64(p.opts.Delay))))
		defer t.Stop()
		select {
		case <-t.C:
		case <-p.both.hurry:
		}
	case 1:
		runtime.Gosched()
	}
}

// read returns the next frame, and buf or a larger one that replaced it. The frame's data
// is valid until the next read.
func (p *pipe) read(buf []byte) (frame, []byte, error) {
	p.pause(p.readRand)
	n, err := binary.ReadUvarint(p.in)
	if err != nil {
		return frame{}, buf, errHangUp
	}
	if n > maxFrame {
		return frame{}, buf, fmt.Errorf("malformed frame: its length of %d bytes is over %d", n, maxFrame)
	}
	if uint64(cap(buf)) < n {
		buf = make([]byte, n)
	}
	if _, err := io.ReadFull(p.in, buf[:n]); err != nil {
		return frame{}, buf, errHangUp
	}
	f, err := decodeBody(buf[:n])
	if err != nil {
		return frame{}, buf, fmt.Errorf("malformed frame: %w", err)
	}
	return f, buf, nil
}

// write writes b, which has n encoded frames, in pieces. It breaks the pipe if hangsUp says
// so.
func (p *pipe) write(b []byte, n int) error {
	p.pause(p.writeRand)
	if p.hangsUp(n) {
		b = b[:p.writeRand.IntN(len(b)+1)]
		defer p.close()
	}
	for len(b) > 0 {
		k := len(b)
		if p.opts.Delay > 0 && p.writeRand.IntN(4) == 0 {
			k = 1 + p.writeRand.IntN(k)
		}
		if _, err := p.conn.Write(b[:k]); err != nil {
			return err
		}
		b = b[k:]
		p.pause(p.writeRand)
	}
	return nil
}

// hangsUp reports whether the pipe must break during the next n frames.
func (p *pipe) hangsUp(n int) bool {
	written := p.both.frames.Add(int64(n))
	if after := int64(p.opts.HangUpAfter); after > 0 && written >= after {
		return true
	}
	for range n {
		if p.opts.HangUp > 0 && p.writeRand.Float64() < p.opts.HangUp {
			return true
		}
	}
	return false
}

// stopPausing ends all pauses of both ends.
func (p *pipe) stopPausing() { p.both.once.Do(func() { close(p.both.hurry) }) }

func (p *pipe) close() {
	p.stopPausing()
	_ = p.conn.Close()
}
