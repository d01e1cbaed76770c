package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	flatbuffers "github.com/google/flatbuffers/go"
	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/protobuf/proto"

	"github.com/nearcall/nearcall/bench/internal/benchpb"
	"github.com/nearcall/nearcall/bench/internal/blobs"
	"github.com/nearcall/nearcall/flat"
)

// selected reports whether tests and benchmarks run with a rival or a stack. NEARCALL_RIVALS=none
// leaves nearcall, and NEARCALL_RIVALS=only the others. make test runs both: a rival that fails is
// reported, and is no failure.
func selected(name string) bool {
	isOurs := strings.Contains(name, "nearcall")
	switch os.Getenv("NEARCALL_RIVALS") {
	case "none":
		return isOurs
	case "only":
		return !isOurs
	}
	return true
}

// each runs f for every row with every rival that takes part. The names suit benchstat
// -col /rival.
func each[T interface {
	Run(string, func(T)) bool
}](t T, table Table, rows []Row, f func(T, Row, Rival)) {
	for _, row := range rows {
		t.Run("row="+row.Name, func(t T) {
			for _, rival := range table.Rivals {
				if rival.Takes(row) && selected(rival.Name) {
					t.Run("rival="+rival.Name, func(t T) { f(t, row, rival) })
				}
			}
		})
	}
}

// ofOneProcess runs f for each table of one process.
func ofOneProcess(t *testing.T, f func(*testing.T, Table)) {
	for _, table := range Tables(0) {
		if !table.Processes {
			t.Run("table="+table.Name, func(t *testing.T) { f(t, table) })
		}
	}
}

func TestRivalsAnswerRightly(t *testing.T) {
	ofOneProcess(t, func(t *testing.T, table Table) { each(t, table, table.Rows, answersRightly) })
}

func answersRightly(t *testing.T, row Row, rival Rival) {
	f, err := Open(row, rival)
	if err != nil {
		t.Fatal(err)
	}
	times := 10
	if row.Size > 1<<20 || row.Pause > 10*time.Millisecond {
		times = 1
	}
	if _, err := f.Run(times); err != nil {
		t.Error(err)
	}
	if err := f.Check(); err != nil {
		t.Error(err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
}

// TestRowsAreData measures rows that are not in the tournament, to show that other sizes and
// several callers need no code.
func TestRowsAreData(t *testing.T) {
	rows := []Row{
		{Name: "unary-0", Kind: Unary},
		{Name: "unary-200KB-10", Kind: Unary, Size: 200 << 10, Cancellable: true, Callers: 10},
		{Name: "record-3", Kind: Record, Callers: 3},
		{Name: "bidi-echo-1KB-3", Kind: BidiEcho, Size: 1 << 10, Callers: 3},
		{Name: "server-stream-0", Kind: ServerStream, Size: 32},
		{Name: "client-stream-0", Kind: ClientStream, Size: 32},
		{Name: "unary-rested-3", Kind: Unary, Size: 32, Callers: 3, Pause: time.Microsecond},
	}
	ofOneProcess(t, func(t *testing.T, table Table) {
		each(t, table, rows, func(t *testing.T, row Row, rival Rival) {
			f, err := Open(row, rival)
			if err != nil {
				t.Fatal(err)
			}
			latencies := make([]time.Duration, 25)
			s, err := f.Measure(25, latencies)
			if err != nil || s.Ops != 25 || s.Time <= 0 {
				t.Errorf("%+v, %v", s, err)
			}
			if !slices.IsSorted(s.Latency[:]) || s.Latency[len(s.Latency)-1] <= 0 {
				t.Errorf("latencies are %v", s.Latency)
			}
			if err := f.Close(); err != nil {
				t.Error(err)
			}
		})
	})
}

// A liar answers with one byte or one message too few.
type liar struct{ service }

func shorter(p *testpb.Payload) *testpb.Payload { return &testpb.Payload{Body: p.Body[1:]} }

func (liar) UnaryCall(_ context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	return &testpb.SimpleResponse{Payload: shorter(in.Payload)}, nil
}

func (l liar) StreamingOutputCall(in *testpb.StreamingOutputCallRequest, s grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
	l.messages--
	return l.service.StreamingOutputCall(in, s)
}

func (l liar) StreamingInputCall(s grpc.ClientStreamingServer[testpb.StreamingInputCallRequest, testpb.StreamingInputCallResponse]) error {
	return l.service.StreamingInputCall(shortReply{s})
}

// A shortReply says a byte less than it was told to.
type shortReply struct {
	grpc.ClientStreamingServer[testpb.StreamingInputCallRequest, testpb.StreamingInputCallResponse]
}

func (s shortReply) SendAndClose(m *testpb.StreamingInputCallResponse) error {
	m.AggregatedPayloadSize--
	return s.ClientStreamingServer.SendAndClose(m)
}

func (liar) FullDuplexCall(s grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
	in, err := s.Recv()
	if err != nil {
		return err
	}
	return s.Send(&testpb.StreamingOutputCallResponse{Payload: shorter(in.Payload)})
}

func (l liar) Echo(ctx context.Context, in *benchpb.Record) (*benchpb.Record, error) {
	out := proto.CloneOf(in)
	out.Lines = out.Lines[1:]
	return l.service.Echo(ctx, out)
}

func (l liar) Swap(ctx context.Context, in *blobs.Blob) (*flatbuffers.Builder, error) {
	return built(flat.NewReply(ctx, in.BodyLength()+100), in.BodyBytes()[1:]), nil
}

// A forger answers with the right length, but changes one byte in the middle.
type forger struct{ service }

func forged(p *testpb.Payload) *testpb.Payload {
	p = fresh(p)
	p.Body[len(p.Body)/2]++
	return p
}

func (forger) UnaryCall(_ context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	return &testpb.SimpleResponse{Payload: forged(in.Payload)}, nil
}

func (f forger) StreamingOutputCall(in *testpb.StreamingOutputCallRequest, s grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
	return f.service.StreamingOutputCall(&testpb.StreamingOutputCallRequest{Payload: forged(in.Payload)}, s)
}

func (f forger) StreamingInputCall(s grpc.ClientStreamingServer[testpb.StreamingInputCallRequest, testpb.StreamingInputCallResponse]) error {
	return f.service.StreamingInputCall(shortReply{s}) // the reply is no bytes to forge
}

func (forger) FullDuplexCall(s grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
	for {
		in, err := s.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := s.Send(&testpb.StreamingOutputCallResponse{Payload: forged(in.Payload)}); err != nil {
			return err
		}
	}
}

func (liar) EchoPair(_ context.Context, in *benchpb.Pair) (*benchpb.Pair, error) {
	return &benchpb.Pair{First: in.First}, nil
}

func (liar) EchoText(_ context.Context, in *benchpb.Text) (*benchpb.Text, error) {
	return &benchpb.Text{Text: in.Text[1:]}, nil
}

func (forger) EchoPair(_ context.Context, in *benchpb.Pair) (*benchpb.Pair, error) {
	return &benchpb.Pair{First: in.Second, Second: in.First}, nil
}

func (forger) EchoText(_ context.Context, in *benchpb.Text) (*benchpb.Text, error) {
	return &benchpb.Text{Text: strings.ToUpper(in.Text)}, nil
}

func (forger) Swap(ctx context.Context, in *blobs.Blob) (*flatbuffers.Builder, error) {
	body := bytes.Clone(in.BodyBytes())
	body[len(body)/2]++
	return built(flat.NewReply(ctx, len(body)+100), body), nil
}

func (f forger) Echo(ctx context.Context, in *benchpb.Record) (*benchpb.Record, error) {
	out := proto.CloneOf(in)
	out.Labels["gift"] = "yes"
	return f.service.Echo(ctx, out)
}

func TestWrongAnswersFail(t *testing.T) {
	for _, c := range []struct {
		name string
		with func(service) Services
	}{
		{"liar", func(s service) Services { return liar{s} }},
		{"forger", func(s service) Services { return forger{s} }},
	} {
		t.Run(c.name, func(t *testing.T) {
			ofOneProcess(t, func(t *testing.T, table Table) {
				each(t, table, table.Rows, func(t *testing.T, row Row, rival Rival) {
					lying := rival
					lying.Connect = func(s Services) (Conn, error) { return rival.Connect(c.with(s.(service))) }
					failsWith(t, row, lying, rival)
				})
			})
		})
	}
}

// failsWith runs a tournament with a rival that answers wrongly, which must fail.
func failsWith(t *testing.T, row Row, lying, base Rival) {
	t.Helper()
	base.Name = "honest"
	tournament := &Tournament{Rows: []Row{row}, Rivals: []Rival{lying}, Baseline: base, Pairs: 1, Time: 1, Progress: io.Discard}
	_, err := tournament.Run()
	if err == nil || !strings.Contains(err.Error(), "wrong answer") || !strings.Contains(err.Error(), row.Name) {
		t.Errorf("the tournament ended with %v, want a wrong answer", err)
	}
}

// TestPausesAreNotMeasured measures a row whose pauses are longer than its calls.
func TestPausesAreNotMeasured(t *testing.T) {
	const n, pause = 5, 20 * time.Millisecond
	row := Row{Name: "rested", Kind: Unary, Size: 32, Pause: pause}
	f, err := Open(row, inProcess.base())
	if err != nil {
		t.Fatal(err)
	}
	latencies := make([]time.Duration, n)
	start := time.Now()
	s, err := f.Measure(n, latencies)
	if err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took < 2*n*pause || s.Time > n*pause || s.Latency[0] > float64(pause) {
		t.Errorf("in %v there were %v of calls, with a median of %v ns", took, s.Time, s.Latency[0])
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
}

// TestRowsAndRivalsDiffer checks what benchmarks, tables and pictures assume of rows and
// rivals.
func TestRowsAndRivalsDiffer(t *testing.T) {
	files := make(map[string]bool)
	for _, table := range Tables(0) {
		if files[table.Name] || files[table.File] || table.Title == "" {
			t.Errorf("%s, %s: the name or the file is another table's, or there is no title", table.Name, table.File)
		}
		files[table.Name], files[table.File] = true, true
		t.Run("table="+table.Name, func(t *testing.T) { rowsAndRivalsDiffer(t, table) })
	}
}

func rowsAndRivalsDiffer(t *testing.T, table Table) {
	seen := make(map[any]bool)
	once := func(what any) {
		if seen[what] {
			t.Errorf("%v is there twice", what)
		}
		seen[what] = true
	}
	chosen := 0
	for _, row := range table.Rows {
		once(row.Name)
		once(row.Title() + ", " + row.Context())
		if row.Chosen {
			chosen++
		}
		if !table.base().Takes(row) {
			t.Errorf("the baseline has no part in %s", row.Name)
		}
	}
	if chosen != 5 {
		t.Errorf("the short picture has %d rows, and not five", chosen)
	}
	for _, rival := range table.Rivals {
		once(rival.Name)
		once(colors[rival.Name])
		if colors[rival.Name] == (Color{}) {
			t.Errorf("%s has no color", rival.Name)
		}
		if (rival.Connect == nil) == (rival.Dial == nil) {
			t.Errorf("%s has not one way to connect", rival.Name)
		}
	}
}

// TestRowsBetweenProcesses checks the list of rows against its purpose.
func TestRowsBetweenProcesses(t *testing.T) {
	const want = "empty, two-integers, string-100B, unary-record, unary-100KB, unary-1MB, unary-10MB, flat-1MB, flat-10MB, unary-32B-idle-1ms, unary-32B-idle-100ms, " +
		"server-stream-100x32B, client-stream-100x32B, bidi-echo-32B, bidi-echo-32B-100-streams, bidi-echo-32B-1000-streams, bidi-echo-32B-10000-streams, " +
		"unary-32B, unary-32B-10-callers, unary-32B-64-callers, unary-32B-100-callers, unary-32B-1000-callers"
	var titles []string
	for _, table := range peerTables() {
		if got := strings.Join(names(table.Rows, rowName), ", "); got != want {
			t.Errorf("rows are\n%s\nwant\n%s", got, want)
		}
		rivals := "nearcall, grpc-go, drpc, ttrpc, connect-nearcall, connect-http2, connect-http1, raw, protobuf"
		switch table.Name {
		case "ws":
			rivals = "nearcall, nearcall-tcp, grpc-go, connect-http2, raw"
		case "quic":
			rivals = "nearcall, nearcall-tcp, grpc-go, connect-http3, raw"
		case sharedMemory:
			rivals = "nearcall, nearcall-upgraded, grpc-go, raw, protobuf, shmipc-go, watched-line, one-copy, two-copies, three-copies"
		}
		if got := strings.Join(names(table.Rivals, rivalName), ", "); got != rivals {
			t.Errorf("%s: rivals are %s", table.Name, got)
		}
		titles = names(table.Rows, Row.Title)
	}
	if titles[0] != "empty call" || titles[9] != "unary, 32 B, after 1ms idle" || titles[10] != "unary, 32 B, after 100ms idle" || titles[2] != "string, 100 B" {
		t.Errorf("titles are %q", titles)
	}
}

// TestLimitsOfSharedMemory checks in which rows the limits take part.
func TestLimitsOfSharedMemory(t *testing.T) {
	for rival, want := range map[string]string{
		"watched-line": "empty, two-integers, unary-32B",
		"one-copy":     "unary-100KB, unary-1MB, unary-10MB",
		"two-copies":   "unary-100KB, unary-1MB, unary-10MB",
		"three-copies": "unary-100KB, unary-1MB, unary-10MB",
	} {
		table := overSharedMemory(0)
		var rows []string
		for _, row := range table.Rows {
			if table.Rivals[table.place(Rival{Name: rival})].Takes(row) {
				rows = append(rows, row.Name)
			}
		}
		if got := strings.Join(rows, ", "); got != want {
			t.Errorf("%s is in %s, want %s", rival, got, want)
		}
	}
}

// TestCopiesAreSoMany checks how often each rival copies a message, by the memory that it
// allocates.
func TestCopiesAreSoMany(t *testing.T) {
	const size = 1 << 20
	for times := 1; times <= 3; times++ {
		conn := overCopies(times)
		in := &testpb.SimpleRequest{Payload: payload(size)}
		var out *testpb.SimpleResponse
		call := func() {
			var err error
			if out, err = conn.Test.UnaryCall(t.Context(), in); err != nil {
				t.Fatal(err)
			}
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		call()
		runtime.ReadMemStats(&after)
		if got, want := float64(after.TotalAlloc-before.TotalAlloc)/size, float64(2*times+1); got < want || got >= want+1 { // plus the message that is sent
			t.Errorf("%d there and as many back take the memory of %.2f messages, want %v", times, got, want)
		}
		first := &out.Payload.Body[0]
		call()
		if &out.Payload.Body[0] != first {
			t.Errorf("%d: the copies are not kept", times)
		}
		if err := checkPayload("the copy", out.Payload, in.Payload, true); err != nil {
			t.Errorf("%d: %v", times, err)
		}
	}
}

func TestPercentiles(t *testing.T) {
	values := make([]time.Duration, 1000)
	for i := range values {
		values[i] = time.Duration(1000 - i)
	}
	if got, want := percentiles(values), (Latency{500, 900, 950, 990}); got != want {
		t.Errorf("of 1 to 1000 they are %v, want %v", got, want)
	}
	if got, want := percentiles([]time.Duration{7}), (Latency{7, 7, 7, 7}); got != want {
		t.Errorf("of 7 alone they are %v, want %v", got, want)
	}
}

func TestARivalThatCannotConnectEndsTheTournament(t *testing.T) {
	ill := Rival{Name: "ill", Connect: func(Services) (Conn, error) { return Conn{}, errors.New("is ill") }}
	tournament := &Tournament{Rows: inProcess.Rows[:1], Baseline: ill, Pairs: 1, Time: 1, Progress: io.Discard}
	if _, err := tournament.Run(); err == nil || err.Error() != "unary-32B, ill: is ill" {
		t.Errorf("the tournament ended with %v", err)
	}
}

func BenchmarkRow(b *testing.B) { each(b, inProcess, inProcess.Rows, bench) }

func BenchmarkLoop(b *testing.B) { each(b, onLoop, onLoop.Rows, bench) }

func bench(b *testing.B, row Row, rival Rival) {
	f, err := Open(row, rival)
	if err != nil {
		b.Fatal(err)
	}
	theirs, err := f.serverCPU()
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.ResetTimer()
	ours := processCPU()
	elapsed, err := f.Run(b.N)
	ours = processCPU() - ours
	b.StopTimer()
	if row.Pause > 0 {
		b.ReportMetric(float64(elapsed.Nanoseconds())/float64(b.N), "ns/op")
	}
	if f.conn.Peer != nil && err == nil {
		var later time.Duration
		later, err = f.serverCPU()
		b.ReportMetric(float64((ours+later-theirs).Nanoseconds())/float64(b.N), "CPU-ns/op")
	}
	if closing := f.Close(); err == nil {
		err = closing
	}
	if err != nil {
		b.Fatal(err)
	}
}
