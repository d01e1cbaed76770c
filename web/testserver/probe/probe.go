// Package probe implements Probe.
package probe

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/web/testserver/probepb"
)

// Server implements Probe. The text of a request to Echo can be a command:
//
//	!metadata  returns the request's metadata as JSON
//	!header    sends a header and a trailer
//	!details   fails with details, a header and a trailer
//	!fail      fails
//	!panic     fails with a text that is not ASCII
//	!hang      waits until the call is cancelled
//	!sleep     waits for 200 ms
//	!left      returns the remaining time, in milliseconds, as n
//	!counts    returns how many calls run, were cancelled, and how many notes List has sent
type Server struct {
	probepb.UnimplementedProbeServer
	running, cancelled, sent atomic.Int64
}

func (s *Server) begin(ctx context.Context) (end func()) {
	s.running.Add(1)
	return func() {
		s.running.Add(-1)
		if ctx.Err() != nil {
			s.cancelled.Add(1)
		}
	}
}

// Echo implements Probe.
func (s *Server) Echo(ctx context.Context, in *probepb.Note) (*probepb.Note, error) {
	switch command, ok := strings.CutPrefix(in.Text, "!"); {
	case ok:
		return s.obey(ctx, command)
	default:
		return in, nil
	}
}

func (s *Server) obey(ctx context.Context, command string) (*probepb.Note, error) {
	if command != "counts" {
		defer s.begin(ctx)()
	}
	both := metadata.Pairs("x-text", "text", "x-list", "a", "x-list", "b", "x-data-bin", "\x00\xff", "x-data-bin", "\x01")
	switch command {
	case "metadata":
		md, _ := metadata.FromIncomingContext(ctx)
		b, err := json.Marshal(md)
		return &probepb.Note{Text: string(b)}, err
	case "header", "details":
		_ = grpc.SetHeader(ctx, metadata.Join(both, metadata.Pairs("which", "header")))
		_ = grpc.SetTrailer(ctx, metadata.Join(both, metadata.Pairs("which", "trailer")))
		if command == "header" {
			return &probepb.Note{}, nil
		}
		st, err := status.New(codes.FailedPrecondition, "nein, müde").WithDetails(&errdetails.RetryInfo{}, &probepb.Note{Text: "detail", N: 7})
		if err != nil {
			return nil, err
		}
		return nil, st.Err()
	case "fail":
		return nil, status.Error(codes.NotFound, "not here")
	case "hang":
		<-ctx.Done()
		return nil, status.FromContextError(ctx.Err()).Err()
	case "sleep":
		select {
		case <-ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
		return &probepb.Note{}, nil
	case "left":
		deadline, ok := ctx.Deadline()
		if !ok {
			return &probepb.Note{N: -1}, nil
		}
		return &probepb.Note{N: time.Until(deadline).Milliseconds()}, nil
	case "counts":
		b, err := json.Marshal(map[string]int64{"running": s.running.Load(), "cancelled": s.cancelled.Load(), "sent": s.sent.Load()})
		return &probepb.Note{Text: string(b)}, err
	}
	return nil, status.Errorf(codes.InvalidArgument, "unknown command %q", command)
}

// List implements Probe.
func (s *Server) List(in *probepb.ListRequest, out grpc.ServerStreamingServer[probepb.Note]) error {
	defer s.begin(out.Context())()
	s.sent.Store(0)
	out.SetTrailer(metadata.Pairs("which", "trailer"))
	_ = out.SetHeader(metadata.Pairs("which", "header"))
	data := make([]byte, in.Size)
	for i := range int64(in.Count) {
		if err := out.Send(&probepb.Note{N: i, Data: data}); err != nil {
			return err
		}
		s.sent.Add(1)
	}
	if in.Hang {
		<-out.Context().Done()
		return out.Context().Err()
	}
	return nil
}

// Count implements Probe. A note with the text "!slow" makes it wait for two seconds, one with "!enough"
// ends the call.
func (s *Server) Count(in grpc.ClientStreamingServer[probepb.Note, probepb.Total]) error {
	defer s.begin(in.Context())()
	var total probepb.Total
	for {
		note, err := in.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return in.SendAndClose(&total)
		case err != nil:
			return err
		}
		total.Count++
		total.Bytes += int64(len(note.Data))
		switch note.Text {
		case "!slow":
			time.Sleep(2 * time.Second)
		case "!enough":
			return in.SendAndClose(&total)
		}
	}
}

// Chat implements Probe. A first note with the text "!mixed " and a mixture in JSON makes it send and receive
// that.
func (s *Server) Chat(stream grpc.BidiStreamingServer[probepb.Note, probepb.Note]) error {
	defer s.begin(stream.Context())()
	for {
		note, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case note.Text == "!fail":
			return status.Error(codes.Aborted, "enough")
		}
		if plan, ok := strings.CutPrefix(note.Text, "!mixed "); ok {
			m := new(mixture)
			if err := json.Unmarshal([]byte(plan), m); err != nil {
				return err
			}
			return m.mixed(stream, func() error { return nil })
		}
		if err := stream.Send(note); err != nil {
			return err
		}
	}
}

// A mixture is two streams of messages of unequal sizes: Up is for those from the page, and Down
// for those to it.
type mixture struct {
	Name     string // that the page knows
	Up, Down []int  // sizes of the notes' data
	InTurn   bool   // send only when all has come
	Slow     bool   // pause before some notes are received
}

// A chat is either side of Chat.
type chat interface {
	Send(*probepb.Note) error
	Recv() (*probepb.Note, error)
}

// mixed receives and sends a mixture, and then calls end. Byte j of note i has the value i + j.
func (m *mixture) mixed(stream chat, end func() error) error {
	received := make(chan error, 1)
	receive := func() { received <- m.receive(stream) }
	if m.InTurn {
		receive()
	} else {
		go receive()
	}
	for i, size := range m.Down {
		data := make([]byte, size)
		for j := range data {
			data[j] = byte(i + j)
		}
		if err := stream.Send(&probepb.Note{Data: data}); errors.Is(err, io.EOF) {
			break // Recv says why
		} else if err != nil {
			return err
		}
	}
	if err := end(); err != nil {
		return err
	}
	return <-received
}

func (m *mixture) receive(stream chat) error {
	for i, size := range m.Up {
		if m.Slow && i%8 == 0 {
			time.Sleep(2 * time.Millisecond)
		}
		note, err := stream.Recv()
		if err != nil {
			return err
		}
		if len(note.Data) != size {
			return status.Errorf(codes.DataLoss, "note %d has %d bytes, want %d", i, len(note.Data), size)
		}
		for j, b := range note.Data {
			if b != byte(i+j) {
				return status.Errorf(codes.DataLoss, "note %d: byte %d is another", i, j)
			}
		}
	}
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		return status.Errorf(codes.DataLoss, "after the last note: %v", err)
	}
	return nil
}

// CallBack implements Probe. The method "mixed " and a mixture in JSON is a Chat that sends and receives that.
func (s *Server) CallBack(ctx context.Context, in *probepb.CallBackRequest) (*probepb.Total, error) {
	page := probepb.NewProbeClient(nearcall.PeerConn(ctx))
	if plan, ok := strings.CutPrefix(in.Method, "mixed "); ok {
		m := new(mixture)
		if err := json.Unmarshal([]byte(plan), m); err != nil {
			return nil, err
		}
		notes, err := page.Chat(ctx)
		if err != nil {
			return nil, err
		}
		_ = notes.Send(&probepb.Note{Text: m.Name}) // Recv says why it fails
		return new(probepb.Total), m.mixed(notes, notes.CloseSend)
	}
	total := new(probepb.Total)
	add := func(n *probepb.Note) {
		total.Count++
		total.Bytes += int64(len(n.Data))
		total.Text = n.Text
	}
	data := make([]byte, in.Size)
	switch in.Method {
	case "Echo":
		for range in.Count {
			reply, err := page.Echo(ctx, &probepb.Note{Text: "from Go", Data: data})
			if err != nil {
				return nil, err
			}
			add(reply)
		}
	case "Metadata": // of Echo
		var header, trailer metadata.MD
		if _, err := page.Echo(ctx, new(probepb.Note), grpc.Header(&header), grpc.Trailer(&trailer)); err != nil {
			return nil, err
		}
		total.Text = strings.Join(append(header.Get("x-page"), trailer.Get("x-page")...), ", ")
	case "List":
		notes, err := page.List(ctx, &probepb.ListRequest{Count: in.Count, Size: in.Size})
		if err != nil {
			return nil, err
		}
		for {
			note, err := notes.Recv()
			if errors.Is(err, io.EOF) {
				return total, nil
			}
			if err != nil {
				return nil, err
			}
			add(note)
		}
	case "Count":
		notes, err := page.Count(ctx)
		if err != nil {
			return nil, err
		}
		for range in.Count {
			if err := notes.Send(&probepb.Note{Data: data}); err != nil {
				break // CloseAndRecv says why
			}
		}
		return notes.CloseAndRecv()
	case "Chat":
		notes, err := page.Chat(ctx)
		if err != nil {
			return nil, err
		}
		for range in.Count {
			if err := notes.Send(&probepb.Note{Text: "from Go", Data: data}); err != nil {
				break // Recv says why
			}
			note, err := notes.Recv()
			if err != nil {
				return nil, err
			}
			add(note)
		}
		if err := notes.CloseSend(); err != nil {
			return nil, err
		}
		if _, err := notes.Recv(); !errors.Is(err, io.EOF) {
			return nil, err
		}
	case "Fail":
		_, err := page.Echo(ctx, &probepb.Note{Text: "!details"})
		return nil, err
	case "Hang":
		ctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		defer cancel()
		_, err := page.Echo(ctx, &probepb.Note{Text: "!hang"})
		return nil, err
	default:
		return nil, status.Errorf(codes.InvalidArgument, "unknown method %q", in.Method)
	}
	return total, nil
}
