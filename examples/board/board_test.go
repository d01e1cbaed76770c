package main

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall"
	pb "github.com/nearcall/nearcall/examples/board/boardpb"
	"github.com/nearcall/nearcall/internal/testing/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// serve serves a board as the program does, and returns its address.
func serve(t *testing.T) string {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	srv := nearcall.NewServer()
	pb.RegisterBoardServer(srv, newBoard(ctx.Done()))
	config, err := newSite(srv)
	if err != nil {
		t.Fatal(err)
	}
	site := httptest.NewUnstartedServer(nil)
	site.Config = config
	site.Start()
	t.Cleanup(func() {
		cancel()
		srv.GracefulStop()
		site.Close()
	})
	return site.Listener.Addr().String()
}

type drawing = grpc.BidiStreamingClient[pb.Draw, pb.Event]

// enter opens its own stream connection, and waits until the board counts n people.
func enter(t *testing.T, address string, n uint32) drawing {
	t.Helper()
	conn, err := nearcall.NewClient("ws://" + address + "/calls")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	stream, err := pb.NewBoardClient(conn).Join(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for {
		if e := next(t, stream); e.GetPeople().GetCount() == n {
			return stream
		}
	}
}

func next(t *testing.T, stream drawing) *pb.Event {
	t.Helper()
	e, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// part returns the next event, which must be a part of a stroke.
func part(t *testing.T, stream drawing) *pb.Part {
	t.Helper()
	for {
		e := next(t, stream)
		if e.GetPeople() != nil {
			continue
		}
		if e.GetPart() == nil {
			t.Fatalf("got %v, want a part of a stroke", e)
		}
		return e.GetPart()
	}
}

func draw(t *testing.T, stream drawing, p *pb.Part) {
	t.Helper()
	if err := stream.Send(&pb.Draw{What: &pb.Draw_Part{Part: p}}); err != nil {
		t.Fatal(err)
	}
}

func TestStrokesGoToTheOthers(t *testing.T) {
	address := serve(t)
	one := enter(t, address, 1)
	two := enter(t, address, 2)
	draw(t, one, &pb.Part{Author: 7, Color: 3, Xy: []uint32{1, 2, 3, 4}})
	if p := part(t, two); p.GetAuthor() != 7 || p.GetColor() != 3 || !slices.Equal(p.GetXy(), []uint32{1, 2, 3, 4}) {
		t.Errorf("got %v", p)
	}
	draw(t, two, &pb.Part{Author: 8, Xy: []uint32{5, 5}})
	if p := part(t, one); p.GetAuthor() != 8 { // not its own
		t.Errorf("got %v", p)
	}
}

// A page sends its strokes again when it has lost the connection.
func TestPointsThatTheBoardHasAreLeftOut(t *testing.T) {
	address := serve(t)
	one := enter(t, address, 1)
	two := enter(t, address, 2)
	draw(t, one, &pb.Part{Author: 7, Color: 3, Xy: []uint32{1, 1}})
	draw(t, one, &pb.Part{Author: 7, Color: 3, Xy: []uint32{1, 1}})
	draw(t, one, &pb.Part{Author: 7, Color: 3, Xy: []uint32{1, 1, 2, 2}})
	draw(t, one, &pb.Part{Author: 7, Start: 9, Color: 3, Xy: []uint32{9, 9}}) // of a stroke that was removed
	draw(t, one, &pb.Part{Author: 7, Start: 1, Color: 3, Xy: []uint32{2, 2, 3, 3}})
	for i := range uint32(3) {
		if p := part(t, two); p.GetStart() != i || !slices.Equal(p.GetXy(), []uint32{i + 1, i + 1}) {
			t.Errorf("part %d is %v", i, p)
		}
	}
	three := enter(t, address, 3)
	_ = one.CloseSend()
	draw(t, two, &pb.Part{Author: 8, Xy: []uint32{5, 5}})
	if p := part(t, three); p.GetAuthor() != 8 {
		t.Errorf("after the picture: %v", p)
	}
}

func TestWhoComesLateGetsThePicture(t *testing.T) {
	address := serve(t)
	one := enter(t, address, 1)
	two := enter(t, address, 2)
	draw(t, one, &pb.Part{Author: 7, Xy: []uint32{1, 1}})
	draw(t, one, &pb.Part{Author: 7, Start: 1, Xy: []uint32{2, 2}})
	part(t, two)
	part(t, two)
	conn, err := nearcall.NewClient("ws://" + address + "/calls")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	late, err := pb.NewBoardClient(conn).Join(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if p := part(t, late); !slices.Equal(p.GetXy(), []uint32{1, 1, 2, 2}) {
		t.Errorf("the picture is %v", p)
	}
	if err := two.Send(&pb.Draw{What: &pb.Draw_Clear{Clear: &pb.Clear{}}}); err != nil {
		t.Fatal(err)
	}
	for _, stream := range []drawing{one, two, late} {
		for next(t, stream).GetClear() == nil {
		}
	}
}

func TestBadDrawingsAreRefused(t *testing.T) {
	address := serve(t)
	long := make([]uint32, 2*maxPoints)
	for name, c := range map[string]struct {
		in   *pb.Draw
		code codes.Code
		says string
	}{
		"nothing":         {&pb.Draw{}, codes.InvalidArgument, "neither"},
		"no points":       {&pb.Draw{What: &pb.Draw_Part{Part: &pb.Part{}}}, codes.InvalidArgument, "needs points"},
		"half a point":    {&pb.Draw{What: &pb.Draw_Part{Part: &pb.Part{Xy: []uint32{1}}}}, codes.InvalidArgument, "needs points"},
		"too far right":   {&pb.Draw{What: &pb.Draw_Part{Part: &pb.Part{Xy: []uint32{1601, 0}}}}, codes.InvalidArgument, "1600 by 1000"},
		"too far down":    {&pb.Draw{What: &pb.Draw_Part{Part: &pb.Part{Xy: []uint32{0, 1001}}}}, codes.InvalidArgument, "1600 by 1000"},
		"too many points": {&pb.Draw{What: &pb.Draw_Part{Part: &pb.Part{Xy: long}}}, codes.ResourceExhausted, "is full"},
	} {
		stream := enter(t, address, 1)
		if err := stream.Send(c.in); err != nil {
			t.Fatal(err)
		}
		_, err := stream.Recv()
		if status.Code(err) != c.code || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A person who receives nothing does not hold up the others, and costs a bounded backlog.
func TestABacklogIsBounded(t *testing.T) {
	b := newBoard(nil)
	slow := b.enter()
	if _, err := b.take(slow); err != nil { // it is there
		t.Fatal(err)
	}
	from := b.enter()
	for i := range uint32(2 * maxBacklog) {
		if err := b.draw(from, &pb.Part{Stroke: i, Xy: []uint32{1, 1}}); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(slow.backlog); n > maxBacklog+1 {
		t.Errorf("%d events wait", n)
	}
	if _, err := b.take(slow); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("got %v", err)
	}
	late := b.enter() // gets a picture that is larger
	if events, err := b.take(late); err != nil || len(events) < 2*maxBacklog {
		t.Errorf("%d events, %v", len(events), err)
	}
}

func TestOnePortServesThePageConnectAndGRPC(t *testing.T) {
	address := serve(t)
	for path, says := range map[string]string{"/": "<title>nearcall board", "/board.js": "nearcall.v1", "/board.css": "canvas"} {
		resp, err := http.Get("http://" + address + path)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusOK || !strings.Contains(string(text), says) {
			t.Errorf("%s: %s without %q", path, resp.Status, says)
		}
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+address+"/nearcall.examples.board.v1.Board/Echo", strings.NewReader(`{"text":"hi"}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Origin", "http://"+address) // as a page does
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if text, _ := io.ReadAll(resp.Body); string(text) != `{"text":"hi"}` {
		t.Errorf("Echo: %s, %s", resp.Status, text)
	}
	http.DefaultClient.CloseIdleConnections()

	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if reply, err := pb.NewBoardClient(conn).Echo(t.Context(), &pb.Ping{Text: "hi"}); err != nil || reply.GetText() != "hi" {
		t.Errorf("Echo of gRPC: %v, %v", reply, err)
	}
}

func TestDrawingAFlower(t *testing.T) {
	address := serve(t)
	watcher := enter(t, address, 1)
	draw(t, watcher, &pb.Part{Author: 1, Xy: []uint32{1, 1}})
	ctx, cancel := context.WithCancel(t.Context())
	said, out := io.Pipe()
	done := make(chan error, 1)
	go func() {
		done <- drawFlower(ctx, "ws://"+address+"/calls", out)
		_ = out.Close()
	}()
	go func() { _, _ = io.Copy(io.Discard, said) }()
	if p := part(t, watcher); p.GetStart() != 0 || len(p.GetXy()) != 2 {
		t.Errorf("the flower begins with %v", p)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := drawFlower(t.Context(), "tcp:", io.Discard); err == nil {
		t.Error("an invalid target draws")
	}
}
