package web

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"runtime"
	"testing"
	"time"

	"google.golang.org/grpc/mem"

	"github.com/nearcall/nearcall/internal/codec"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/message"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/sniff"
	"github.com/nearcall/nearcall/internal/testing/transporttest"
	"github.com/nearcall/nearcall/internal/transport/inproc"
)

// TestStreams holds a stream to the contract of callees. Its caller is one of an
// in-process stream; between the two, a bridge does the work of the HTTP goroutines.
func TestStreams(t *testing.T) {
	const inprocWindow, window = 64 << 10, 4 << 10 // that of the stream is what the bridge adds
	transporttest.Suite{
		Connect: func(t *testing.T, deadline time.Time) (caller, callee link.Stream) {
			accepted := make(transporttest.Accepter, 1)
			session, err := inproc.Connect("localhost", inproc.Options{Config: &options.NewClient(nil).Connections}, func(link.Session) link.Acceptor { return accepted })
			if err != nil {
				t.Fatal(err)
			}
			caller, err = session.NewStream(t.Context(), &link.CallHeader{Method: "/a/b", Profile: &link.Profile{}, Deadline: deadline})
			if err != nil {
				t.Fatal(err)
			}
			_, conn := net.Pipe()
			st := newStream(newConn(serverOf(t, windows(window)), sniff.Handover{Conn: conn}).session, &request{kind: grpcWeb, size: -1})
			far := <-accepted
			bridge(far, st)
			t.Cleanup(func() {
				far.Abort(errors.New("the test is over"))
				st.Abort(errors.New("the test is over"))
				_ = session.Close(errors.New("the test is over"))
			})
			return caller, st
		},
		Window:  inprocWindow,
		Codec:   codec.Proto(),
		Without: map[string]string{"a message may be larger than the window": "the bridge holds one more message"},
	}.Run(t)
}

// bridge passes on what arrives at far, the other end of the caller, to the inbox of st, and
// what st sends to far.
func bridge(far link.Stream, st *stream) {
	far.OnAbort(st.Abort)
	go func() {
		for {
			var got []byte
			f := &link.Frame{Sink: message.Sink{Dst: &got, Codec: raw{}, Limit: 1 << 30}}
			if err := far.Recv(f); err != nil {
				return
			}
			if f.Got {
				head := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(got)))
				for all := append(head, got...); len(all) > 0; {
					n := min(len(all), firstRead)
					if !st.arrived(all[:n], nil) || st.isOver() {
						return
					}
					all = all[n:]
				}
			}
			if f.EndSend {
				st.arrived(nil, io.EOF)
				return
			}
		}
	}()
	go func() {
		for written := 0; ; {
			steps, reason := st.take(written)
			if reason != nil {
				far.Abort(reason)
				return
			}
			written = 0
			for i := range steps {
				written += steps[i].cost()
				f := &link.Frame{Header: steps[i].header, HasMsg: steps[i].has, End: steps[i].end}
				if f.HasMsg {
					f.Msg = message.Encoded(mem.BufferSlice{mem.SliceBuffer(bytes.Clone(steps[i].message[envelope:]))})
				}
				if far.Send(f) != nil || f.End != nil {
					return
				}
			}
		}
	}()
}

// raw is a codec of bytes.
type raw struct{ message.Codec }

func (raw) Decode(data message.Data, v any) (kept bool, err error) {
	*v.(*[]byte) = data.Copy()
	return false, nil
}

// TestAMessageTakesTheMemoryThatHasArrived: its announced length takes none.
func TestAMessageTakesTheMemoryThatHasArrived(t *testing.T) {
	_, conn := net.Pipe()
	st := newStream(newConn(serverOf(t, Options{}), sniff.Handover{Conn: conn}).session, &request{kind: grpcWeb, size: -1})
	const announced, sent = 1 << 29, 100 << 10
	received := make(chan error, 1)
	go func() {
		f := &link.Frame{Sink: message.Sink{Dst: new([]byte), Codec: raw{}, Limit: 1 << 30}}
		received <- st.Recv(f)
	}()
	st.arrived(binary.BigEndian.AppendUint32([]byte{0}, announced), nil)
	before := memory()
	for range sent / firstRead {
		st.arrived(make([]byte, firstRead), nil)
	}
	if grown := memory() - before; grown > 20*sent {
		t.Errorf("%d bytes of a message of %d allocate %d", sent, announced, grown)
	}
	st.Abort(errors.New("enough"))
	if err := <-received; err == nil {
		t.Error("an unfinished message was received")
	}
}

// memory returns how many bytes the process has allocated so far.
func memory() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.TotalAlloc
}
