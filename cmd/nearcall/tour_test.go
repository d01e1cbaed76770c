package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/nearcall/nearcall/internal/testing/needs"
)

// allPaths returns the paths of a tour including baselines, and how often it reports
// progress.
func allPaths() (all []path, told int) {
	for _, s := range stretches {
		if s.missing != nil && !needs.HasUnixSockets() {
			continue
		}
		all = append(all, s.all()...)
		told += len(calls)
	}
	return all, told
}

// TestATourLeavesOutWhatTheSystemLacks checks that a tour omits paths that the system does not
// support, and says so.
func TestATourLeavesOutWhatTheSystemLacks(t *testing.T) {
	before := slices.Clone(stretches)
	defer func() { stretches = before }()
	stretches = slices.Clone(before)
	stretches[1].missing = func() error { return errors.New("no such sockets") }
	const says = "second process, unix socket"
	code, stdout, stderr := nearcallCommand(t, "tour", "-time", short)
	if code != exitOK {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	if !strings.Contains(stdout, "\nLeft out: "+says) || !strings.Contains(stdout, ": no such sockets\n") || strings.Contains(stdout, "\n"+says) {
		t.Errorf("it prints\n%s", stdout)
	}
	code, stdout, stderr = nearcallCommand(t, "tour", "-json", "-time", short)
	if code != exitOK {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	var r report
	if err := json.Unmarshal([]byte(stdout), &r); err != nil || len(r.LeftOut) != 1 || !strings.HasPrefix(r.LeftOut[0], says) || len(r.Processes) != 3*len(calls) {
		t.Errorf("it prints\n%s", stdout)
	}
}

// short is a budget with which a slot has time for hardly more than one call.
const short = "20ms"

func TestTourMeasuresEveryCallOverEveryPath(t *testing.T) {
	code, stdout, stderr := nearcallCommand(t, "tour", "-json", "-time", short)
	if code != exitOK {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	var r report
	if err := json.Unmarshal([]byte(stdout), &r); err != nil {
		t.Fatalf("%v in %s", err, stdout)
	}
	if r.Version == "" || r.Go == "" || r.Machine.Cores == 0 || r.Machine.OS == "" || time.Since(r.Date).Abs() > time.Hour {
		t.Errorf("where and when is not told: %+v", r)
	}
	rows := map[[2]string]row{}
	for _, row := range r.Rows {
		rows[[2]string{row.Path, row.Call}] = row
	}
	if want := len(calls) * (len(paths) + 1); len(r.Rows) != want || len(rows) != want {
		t.Errorf("%d rows, %d of them different, want %d", len(r.Rows), len(rows), want)
	}
	for _, row := range r.Processes {
		rows[[2]string{row.Path, row.Call}] = row
	}
	all, told := allPaths()
	if n := strings.Count(stderr, "\n"); n != told {
		t.Errorf("progress is not a line a call: %q", stderr)
	}
	if want := len(calls) * (len(all) - len(paths) - 1); len(r.Processes) != want {
		t.Errorf("%d rows of second processes, want %d", len(r.Processes), want)
	}
	baselines := map[string]bool{}
	for _, s := range stretches {
		baselines[s.baseline.name] = true
	}
	for _, p := range all {
		for _, c := range calls {
			row, ok := rows[[2]string{p.name, c.name}]
			if !ok {
				t.Errorf("no row for %s, %s", p.name, c.name)
				continue
			}
			if row.P50 <= 0 || row.P99 < row.P50 || row.PerSecond <= 0 || row.TimesGRPC <= 0 {
				t.Errorf("not everything is positive: %+v", row)
			}
			if baselines[p.name] && row.TimesGRPC != 1 {
				t.Errorf("gRPC is %v times gRPC", row.TimesGRPC)
			}
		}
	}
}

// A liar answers with one byte or one message too few.
type liar struct{ service }

func (liar) UnaryCall(_ context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	return &testpb.SimpleResponse{Payload: &testpb.Payload{Body: in.Payload.Body[1:]}}, nil
}

func (liar) StreamingOutputCall(in *testpb.StreamingOutputCallRequest, s grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
	for range messages - 1 {
		if err := s.Send(&testpb.StreamingOutputCallResponse{Payload: in.Payload}); err != nil {
			return err
		}
	}
	return nil
}

func (liar) FullDuplexCall(s grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
	in, err := s.Recv()
	if err != nil {
		return err
	}
	return s.Send(&testpb.StreamingOutputCallResponse{Payload: &testpb.Payload{Body: in.Payload.Body[1:]}})
}

func TestWrongAnswersFailTheTour(t *testing.T) {
	for _, c := range calls {
		t.Run(c.name, func(t *testing.T) {
			liars := &tour{service: liar{}, stretch: stretches[0], calls: []call{c}, budget: time.Millisecond, rounds: 1}
			_, err := liars.run(t.Context(), func(string, float64) {})
			if err == nil || !strings.Contains(err.Error(), "wrong answer") || !strings.Contains(err.Error(), c.name) {
				t.Errorf("the tour ended with %v, want a wrong answer", err)
			}
		})
	}
}

func TestAPathThatCannotBeOpenedFailsTheTour(t *testing.T) {
	broken := path{"by boat", "", func(testpb.TestServiceServer) (connection, error) { return connection{}, errors.New("no water") }}
	lost := &tour{service: service{}, stretch: stretch{paths: []path{paths[1], broken}, baseline: stretches[0].baseline}, calls: calls, budget: time.Millisecond, rounds: 1}
	if _, err := lost.run(t.Context(), func(string, float64) {}); err == nil || err.Error() != "by boat: no water" {
		t.Errorf("the tour ended with %v", err)
	}
}

// A trigger is a writer that calls a function at the first write.
type trigger func()

func (f trigger) Write(p []byte) (int, error) { f(); return len(p), nil }

func TestInterruptionEndsTheTour(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out bytes.Buffer
	if code := run(ctx, []string{"tour", "-time", "1h"}, stdio{nil, &out, trigger(cancel)}); code != exitInterrupted {
		t.Errorf("exit code %d, want %d", code, exitInterrupted)
	}
	if out.Len() > 0 {
		t.Errorf("an interrupted tour printed %s", out.String())
	}
}
