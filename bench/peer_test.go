package main

import (
	"bufio"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/testing/chaos"
	"github.com/nearcall/nearcall/internal/testing/leak"
)

// peerTables returns the tables of two processes.
func peerTables() []Table {
	return slices.DeleteFunc(Tables(defaultParked), func(t Table) bool { return !t.Processes })
}

// servicesEnv is the environment variable that chooses the services of second processes whose
// setup chooses none.
const servicesEnv = "NEARCALL_BENCH_SERVICES"

// inTests wraps the services of a second process in tests: some answer wrongly.
func inTests(kind string, s service) Services {
	switch cmp.Or(kind, os.Getenv(servicesEnv)) {
	case "mixed":
		return mixing{s, new(chaos.MixedService)}
	case "liar":
		return liar{s}
	case "forger":
		return forger{s}
	}
	return s
}

func TestPeersAnswerRightly(t *testing.T) {
	for _, table := range peerTables() {
		t.Run("net="+table.Name, func(t *testing.T) {
			if testing.Short() { // a second process takes long to start, and calls of a kind differ little
				each(t, table, oneOfEachKind(table.Rows), answersRightly)
				return
			}
			small := slices.DeleteFunc(slices.Clone(table.Rows), huge)
			each(t, table, small, answersRightly)
			table.Rivals = table.Rivals[:1] // nearcall; the tournament compares the answers of all
			each(t, table, slices.DeleteFunc(slices.Clone(table.Rows), func(r Row) bool { return !huge(r) }), answersRightly)
		})
	}
}

// TestPeersStreamMixedSizes makes streams of messages of 0 bytes to 5 MB in each way in which the
// tournament calls nearcall in a second process, see [chaos.Mixed].
func TestPeersStreamMixedSizes(t *testing.T) {
	t.Setenv(servicesEnv, "mixed")
	for _, table := range peerTables() {
		for _, rival := range table.Rivals {
			if !strings.Contains(rival.Name, "nearcall") || !selected(rival.Name) {
				continue
			}
			t.Run("net="+table.Name+"/rival="+rival.Name, func(t *testing.T) {
				conn, err := rival.Dial(Row{})
				if err != nil {
					t.Fatal(err)
				}
				chaos.Mixed(t, conn.Test, chaos.Mixtures(t))
				conn.Close()
				if err := conn.Peer.stop(); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// mixing is a service whose FullDuplexCall is the other side of [chaos.Mixed].
type mixing struct {
	service
	mixed *chaos.MixedService
}

// FullDuplexCall prints the goroutines that wait in this process if a stream stands still.
// [chaos.Mixed] prints those of the other process a little later.
func (m mixing) FullDuplexCall(s grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
	stands := time.AfterFunc(standstill, func() {
		waits := slices.DeleteFunc(leak.Find(), func(s string) bool { return strings.Contains(s, "bench.park.") })
		fmt.Fprintf(os.Stderr, "the second process: a stream stands still:\n\n%s\n", strings.Join(waits, "\n\n"))
	})
	defer stands.Stop()
	return m.mixed.FullDuplexCall(&grpc.GenericServerStream[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]{ServerStream: moving{s, stands}})
}

// standstill is how long a stream may stand still before it is reported.
const standstill = 8 * time.Second

// moving is a stream that postpones the report of its standstill.
type moving struct {
	grpc.ServerStream
	stands *time.Timer
}

func (m moving) SendMsg(v any) error {
	defer m.stands.Reset(standstill)
	return m.ServerStream.SendMsg(v)
}

func (m moving) RecvMsg(v any) error {
	defer m.stands.Reset(standstill)
	return m.ServerStream.RecvMsg(v)
}

// huge reports whether a single call of the row takes a second or two.
func huge(r Row) bool { return r.Size > 1<<20 }

// TestWrongAnswersOfPeersFail checks that every rival notices a wrong reply, except raw, whose
// replies come from no service. It has a separate test.
func TestWrongAnswersOfPeersFail(t *testing.T) {
	table := peerTables()[0]
	table.Rivals = slices.DeleteFunc(slices.Clone(table.Rivals), func(r Rival) bool { return r.Name == "raw" })
	base := table.base()
	rows := slices.DeleteFunc(oneOfEachKind(table.Rows), func(r Row) bool { return r.Kind.Name == Empty.Name })
	networks := []string{"unix"}
	if hasSharedMemory {
		networks = append(networks, shmNetwork, upgradedNetwork)
	}
	for _, network := range networks {
		if network != "unix" {
			table.Rivals = table.Rivals[:1] // nearcall
		}
		for _, kind := range []string{"liar", "forger"} {
			t.Run("net="+network+"/"+kind, func(t *testing.T) {
				each(t, table, rows, func(t *testing.T, row Row, rival Rival) {
					rival.Dial = overPeer(peerSetup{Stack: rival.Name, Network: network, Services: kind})
					failsWith(t, row, rival, base)
				})
			})
		}
	}
}

// TestNearcallIsMeasuredOverItsNetwork checks that dialling fails if the connection uses
// another network than the table says.
func TestNearcallIsMeasuredOverItsNetwork(t *testing.T) {
	if !hasSharedMemory {
		t.Skip("there is no other network")
	}
	at, stop, err := serveNearcall("unix", filepath.Join(t.TempDir(), "s"), service{})
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	for _, network := range []string{"unix", shmNetwork, upgradedNetwork} {
		conn, err := dialNearcall(network, at, Row{})
		if err != nil {
			t.Errorf("%s: %v", network, err)
			continue
		}
		conn.Close()
	}
	lis, err := nearcall.Listen("unix:" + filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer serveFrom(lis, func(lis net.Listener) (run, stop func()) {
		srv := nearcall.NewServer(nearcall.DisableSharedMemory())
		register(srv, service{})
		return func() { _ = srv.Serve(lis) }, srv.Stop
	})()
	if _, err := dialNearcall(upgradedNetwork, lis.Addr().String(), Row{}); err == nil || !strings.Contains(err.Error(), `network is "unix", not "shm"`) {
		t.Errorf("a socket was taken for shared memory: %v", err)
	}
}

// TestWrongBytesFailRaw changes a byte in the middle of each reply.
func TestWrongBytesFailRaw(t *testing.T) {
	forge := func(body []byte) { body[len(body)/2]++ }
	serve := map[string]func() (string, func(), error){
		"tcp":  func() (string, func(), error) { return serveRawAs("tcp", "127.0.0.1:0", forge) },
		"quic": func() (string, func(), error) { return serveRawQUICAs("127.0.0.1:0", forge) },
	}
	dial := map[string]func(network, address string, row Row) (Conn, error){"tcp": dialRaw, "quic": dialRawQUIC}
	for _, table := range peerTables() {
		if serve[table.Name] == nil {
			continue
		}
		honest := table.Rivals[table.place(Rival{Name: "raw"})]
		forging := Rival{Name: "raw", Dial: func(row Row) (Conn, error) {
			at, stop, err := serve[table.Name]()
			if err != nil {
				return Conn{}, err
			}
			conn, err := dial[table.Name](table.Name, at, row)
			closeConn := conn.Close
			conn.Close = func() {
				closeConn()
				stop()
			}
			return conn, err
		}}
		for _, row := range table.Rows {
			if !honest.Takes(row) || row.Kind.Name == Empty.Name {
				continue
			}
			t.Run("net="+table.Name+"/row="+row.Name, func(t *testing.T) {
				f, err := Open(row, forging)
				if err != nil {
					t.Fatal(err)
				}
				if err := f.Check(); err == nil {
					t.Error("a byte that differs was not noticed")
				}
				_ = f.Close() // an echo's stream has the byte, too
			})
		}
	}
}

func TestAPeerStartsAndStops(t *testing.T) {
	for _, network := range []string{"unix", "tcp", tlsNetwork, quicNetwork} {
		for name := range stacks {
			if !carries(name, network) || !selected(name) {
				continue
			}
			t.Run("net="+network+"/stack="+name, func(t *testing.T) {
				p, err := startPeer(peerSetup{Stack: name, Network: network, Parked: 3})
				if err != nil {
					t.Fatal(err)
				}
				before, err := p.CPU()
				if err != nil || before < 0 || before > time.Minute {
					t.Errorf("processors worked for %v, %v", before, err)
				}
				if after, err := p.CPU(); err != nil || after < before {
					t.Errorf("and then for %v, %v", after, err)
				}
				if err := p.stop(); err != nil {
					t.Error(err)
				}
				if p.cmd.ProcessState == nil || !p.cmd.ProcessState.Success() {
					t.Errorf("the process ended with %v", p.cmd.ProcessState)
				}
				if _, err := os.Stat(p.dir); p.dir != "" && !errors.Is(err, os.ErrNotExist) {
					t.Errorf("its directory is left: %v", err)
				}
			})
		}
	}
}

// carries reports whether the stack can serve on the network.
func carries(stack, network string) bool {
	switch network {
	case quicNetwork:
		return stack == "nearcall" || stack == "raw-quic" || stack == "connect-http3"
	case tlsNetwork:
		return stack == "nearcall" || stack == "grpc-go"
	}
	return stack == "nearcall" || !carries(stack, quicNetwork)
}

func TestAPeerThatCannotServeIsAnError(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	_, err := startPeer(peerSetup{Stack: "pigeon", Network: "unix"})
	if err == nil || !strings.Contains(err.Error(), "pigeon") {
		t.Errorf("got %v", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("%v is left, %v", left, err)
	}
}

// TestAPeerThatIsGoneFailsTheMeasurement kills the second process during calls.
func TestAPeerThatIsGoneFailsTheMeasurement(t *testing.T) {
	var gone *peer
	row := Row{Name: "unary-32B", Kind: Unary, Size: 32, Cancellable: true}
	f, err := Open(row, Rival{Name: "raw", Dial: func(row Row) (Conn, error) {
		p, err := startPeer(peerSetup{Stack: "raw", Network: "tcp"})
		if err != nil {
			return Conn{}, err
		}
		gone = p
		conn, err := dialRaw("tcp", p.Address, row)
		conn.Peer = p
		return conn, err
	}})
	if err != nil {
		t.Fatal(err)
	}
	if s, err := f.Measure(10, nil); err != nil || s.CPU < 0 {
		t.Errorf("%+v, %v", s, err)
	}
	if err := gone.cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	if _, err := f.Measure(10, nil); err == nil || !strings.HasPrefix(err.Error(), "unary-32B, raw: ") {
		t.Errorf("without its server it was measured: %v", err)
	}
	if err := f.Close(); err == nil || !strings.Contains(err.Error(), "ended badly") {
		t.Errorf("that its server was killed is not told: %v", err)
	}
}

func TestWhatAPeerSays(t *testing.T) {
	for _, c := range []struct {
		says string
		want time.Duration
		ok   bool
	}{
		{"cpu 1234\n", 1234, true},
		{"cpu 0\n", 0, true},
		{"cpu -1\n", 0, false},
		{"cpu much\n", 0, false},
		{"cpu\n", 0, false},
		{"address 1234\n", 0, false},
		{"cpu 12", 0, false},
		{"", 0, false},
	} {
		var asked strings.Builder
		p := peer{in: nopCloser{&asked}, out: bufio.NewReader(strings.NewReader(c.says))}
		got, err := p.CPU()
		if (err == nil) != c.ok || c.ok && got != c.want || asked.String() != "cpu\n" {
			t.Errorf("%q: %v, %v, asked with %q", c.says, got, err, asked.String())
		}
	}
}

func TestAPeerAnswersUntilItsInputEnds(t *testing.T) {
	var out strings.Builder
	setup := peerSetup{Stack: "grpc-go", Network: "tcp", Address: "127.0.0.1:0"}
	if err := servePeer(setup, service{}, strings.NewReader("cpu\ncpu\n"), &out); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 3 || !strings.HasPrefix(lines[0], "address 127.0.0.1:") {
		t.Fatalf("it said %q", lines)
	}
	for _, line := range lines[1:] {
		if ns, err := strconv.ParseInt(strings.TrimPrefix(line, "cpu "), 10, 64); err != nil || ns < 0 {
			t.Errorf("it said %q", line)
		}
	}
	if err := servePeer(setup, service{}, strings.NewReader("hello\n"), io.Discard); err == nil || !strings.Contains(err.Error(), "hello") {
		t.Errorf("what it does not know it took: %v", err)
	}
}

func TestProcessCPUGrows(t *testing.T) {
	before := processCPU()
	for start := now(); now()-start < 50*time.Millisecond; {
	}
	if worked := processCPU() - before; worked <= 0 {
		t.Errorf("50 ms of work took %v", worked)
	}
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

// oneOfEachKind returns the first row of each kind.
func oneOfEachKind(rows []Row) []Row {
	seen := map[string]bool{}
	return slices.DeleteFunc(slices.Clone(rows), func(r Row) bool {
		again := seen[r.Kind.Name]
		seen[r.Kind.Name] = true
		return again
	})
}

// BenchmarkPeer calls a second process, as the tournament does. CPU-ns/op is the CPU time
// of both processes. With -benchtime=1x, which measures nothing, it runs only one row of
// each kind; TestPeersAnswerRightly covers the others.
func BenchmarkPeer(b *testing.B) {
	tables, rows := peerTables(), peerRows
	if flag.Lookup("test.benchtime").Value.String() == "1x" {
		rows = oneOfEachKind(rows)
	}
	for _, row := range rows {
		b.Run("row="+row.Name, func(b *testing.B) {
			for _, table := range tables {
				b.Run("net="+table.Name, func(b *testing.B) {
					for _, rival := range table.Rivals {
						if rival.Takes(row) && selected(rival.Name) {
							b.Run("rival="+rival.Name, func(b *testing.B) { bench(b, row, rival) })
						}
					}
				})
			}
		})
	}
}
