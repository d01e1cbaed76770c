package main

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"
)

// each runs f for every row with every rival that takes part. The names are
// made for benchstat: -col /rival.
func each[T interface {
	Run(string, func(T)) bool
}](t T, rows []Row, f func(T, Row, Rival)) {
	for _, row := range rows {
		t.Run("row="+row.Name, func(t T) {
			for _, rival := range Rivals {
				if rival.Takes(row) {
					t.Run("rival="+rival.Name, func(t T) { f(t, row, rival) })
				}
			}
		})
	}
}

func TestRivalsAnswerRightly(t *testing.T) {
	each(t, Rows, func(t *testing.T, row Row, rival Rival) {
		f, err := Open(row, rival)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Run(10); err != nil {
			t.Error(err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestRowsAreData measures rows that are not in the tournament: other sizes and
// several callers take no code.
func TestRowsAreData(t *testing.T) {
	rows := []Row{
		{Name: "unary-100KB", Kind: Unary, Size: 100 << 10},
		{Name: "unary-32B-10", Kind: Unary, Size: 32, Cancellable: true, Callers: 10},
		{Name: "bidi-echo-1KB-3", Kind: BidiEcho, Size: 1 << 10, Callers: 3},
		{Name: "server-stream-0", Kind: ServerStream, Size: 32},
	}
	each(t, rows, func(t *testing.T, row Row, rival Rival) {
		f, err := Open(row, rival)
		if err != nil {
			t.Fatal(err)
		}
		s, err := f.Measure(25)
		if err != nil || s.Ops != 25 || s.Time <= 0 {
			t.Errorf("%+v, %v", s, err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A liar answers with a byte or a message too few.
type liar struct{ service }

func shorter(p *testpb.Payload) *testpb.Payload { return &testpb.Payload{Body: p.Body[1:]} }

func (liar) UnaryCall(_ context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	return &testpb.SimpleResponse{Payload: shorter(in.Payload)}, nil
}

func (l liar) StreamingOutputCall(in *testpb.StreamingOutputCallRequest, s grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
	l.messages--
	return l.service.StreamingOutputCall(in, s)
}

func (liar) FullDuplexCall(s grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
	in, err := s.Recv()
	if err != nil {
		return err
	}
	return s.Send(&testpb.StreamingOutputCallResponse{Payload: shorter(in.Payload)})
}

func TestWrongAnswersFail(t *testing.T) {
	each(t, Rows, func(t *testing.T, row Row, rival Rival) {
		lying := rival
		lying.Connect = func(s testpb.TestServiceServer) (Conn, error) {
			return rival.Connect(liar{s.(service)})
		}
		tournament := &Tournament{Rows: []Row{row}, Rivals: []Rival{rival}, Baseline: lying, Pairs: 1, Time: 1, Progress: io.Discard}
		_, err := tournament.Run()
		if err == nil || !strings.Contains(err.Error(), "wrong answer") || !strings.Contains(err.Error(), row.Name) {
			t.Errorf("the tournament ended with %v, want a wrong answer", err)
		}
	})
}

func TestARivalThatCannotConnectEndsTheTournament(t *testing.T) {
	ill := Rival{Name: "ill", Connect: func(testpb.TestServiceServer) (Conn, error) { return Conn{}, errors.New("is ill") }}
	tournament := &Tournament{Rows: Rows[:1], Baseline: ill, Pairs: 1, Time: 1, Progress: io.Discard}
	if _, err := tournament.Run(); err == nil || err.Error() != "unary-32B, ill: is ill" {
		t.Errorf("the tournament ended with %v", err)
	}
}

func BenchmarkRow(b *testing.B) {
	each(b, Rows, func(b *testing.B, row Row, rival Rival) {
		f, err := Open(row, rival)
		if err != nil {
			b.Fatal(err)
		}
		b.ReportAllocs()
		b.ResetTimer()
		err = f.Run(b.N)
		b.StopTimer()
		if closing := f.Close(); err == nil {
			err = closing
		}
		if err != nil {
			b.Fatal(err)
		}
	})
}
