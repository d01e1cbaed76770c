package chaos

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/testing/leak"
	"github.com/nearcall/nearcall/internal/testing/needs"
	"github.com/nearcall/nearcall/loop"
)

// MaxMixed is the size of the largest message that [Mixed] sends, in bytes, with its encoding.
const MaxMixed = 5<<20 + 100

// standstill is how long nothing may move.
const standstill = 10 * time.Second

// Mixtures returns how many streams a test makes over each path: 2, 1 with -short, or what NEARCALL_MIXED
// says.
func Mixtures(t *testing.T) int {
	s := os.Getenv("NEARCALL_MIXED")
	if s == "" {
		return needs.Rounds(2)
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatalf("NEARCALL_MIXED: %v", err)
	}
	return n
}

// Mixed makes n streams with client, one after the other and some at a time, whose server has
// registered a [MixedService]. They send up, down or both ways. Their messages have sizes from 0 to
// 5 MB, drawn at random, and some receivers pause. Each message must arrive. If nothing moves for
// ten seconds, Mixed fails, and prints who waits.
func Mixed(t *testing.T, client testpb.TestServiceClient, n int) {
	t.Helper()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var moved atomic.Int64
	over := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		tick := time.NewTicker(standstill)
		defer tick.Stop()
		for last := int64(-1); last != moved.Load(); {
			last = moved.Load()
			select {
			case <-over:
				return
			case <-tick.C:
			}
		}
		t.Errorf("nothing moves, after %d messages:\n\n%s", moved.Load(), strings.Join(leak.Find(), "\n\n"))
		cancel()
	})
	for n > 0 && ctx.Err() == nil && !t.Failed() {
		var some sync.WaitGroup
		for range min(n, 1+2*r.IntN(2)) { // a stream alone, or three
			n--
			m := newMixture(r.Uint64(), &moved)
			some.Go(func() {
				if err := m.call(ctx, client); err != nil {
					t.Errorf("stream %d, %s: %v", m.seed, m, err)
				}
			})
		}
		some.Wait()
	}
	close(over)
	watch.Wait()
}

// What a mixture does.
const (
	mixedUp = iota
	mixedDown
	mixedBoth
	mixedInTurn // up, and then down
	mixedKinds
)

// A mixture is one stream of [Mixed]. Both sides make it from the same seed.
type mixture struct {
	seed     uint64
	kind     int
	up, down []int // sizes of messages
	slow     [2]bool
	moved    *atomic.Int64
}

func newMixture(seed uint64, moved *atomic.Int64) *mixture {
	r := rand.New(rand.NewPCG(seed, 0))
	m := &mixture{seed: seed, kind: r.IntN(mixedKinds), slow: [2]bool{r.IntN(2) == 0, r.IntN(2) == 0}, moved: moved}
	for _, sizes := range []*[]int{&m.up, &m.down} {
		limit := []int{100, 10_000, 100_000, 1_000_000, 1_000_000}[r.IntN(5)]
		for left := min(100*limit, 20_000_000); left > 0; left -= limit / 2 {
			*sizes = append(*sizes, r.IntN(limit))
		}
		if r.IntN(3) > 0 { // the window grows
			(*sizes)[0] = 3<<20 + r.IntN(2<<20)
		}
	}
	return m
}

func (m *mixture) String() string {
	return fmt.Sprintf("of kind %d with %d messages up and %d down, the first of %d and %d bytes", m.kind, len(m.up), len(m.down), m.up[0], m.down[0])
}

var noise = sync.OnceValue(func() []byte {
	b := make([]byte, MaxMixed+1000)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(b)
	return b
})

// body returns the contents of message i, which nobody may change.
func (m *mixture) body(i, size int) *testpb.Payload {
	at := (int(m.seed%500) + i) % 1000
	return &testpb.Payload{Body: noise()[at : at+size]}
}

// sends sends messages of sizes.
func (m *mixture) sends(sizes []int, send func(*testpb.Payload) error) error {
	for i, n := range sizes {
		if err := send(m.body(i, n)); err != nil {
			return fmt.Errorf("message %d, of %d bytes: Send: %w", i, n, err)
		}
		m.moved.Add(1)
	}
	return nil
}

// receives receives messages of sizes, and then the end.
func (m *mixture) receives(ctx context.Context, slow bool, sizes []int, recv func() (*testpb.Payload, error)) error {
	r := rand.New(rand.NewPCG(m.seed, 1))
	for i, n := range sizes {
		if slow && r.IntN(8) == 0 {
			if err := loop.Sleep(ctx, time.Duration(r.IntN(3000))*time.Microsecond); err != nil {
				return err
			}
		}
		got, err := recv()
		if err != nil {
			return fmt.Errorf("message %d, of %d bytes: Recv: %w", i, n, err)
		}
		if !bytes.Equal(got.GetBody(), m.body(i, n).Body) {
			return fmt.Errorf("message %d has %d bytes, or others, want %d", i, len(got.GetBody()), n)
		}
		m.moved.Add(1)
	}
	if _, err := recv(); err != io.EOF {
		return fmt.Errorf("received %w, want the end", err)
	}
	return nil
}

func (m *mixture) call(ctx context.Context, client testpb.TestServiceClient) error {
	ctx = metadata.AppendToOutgoingContext(ctx, "seed", strconv.FormatUint(m.seed, 10))
	s, err := client.FullDuplexCall(ctx, grpc.MaxCallRecvMsgSize(MaxMixed))
	if err != nil {
		return err
	}
	upwards := func() error {
		if m.kind != mixedDown {
			if err := m.sends(m.up, func(p *testpb.Payload) error { return s.Send(&testpb.StreamingOutputCallRequest{Payload: p}) }); err != nil {
				return err
			}
		}
		return s.CloseSend()
	}
	downwards := func() error {
		down := m.down
		if m.kind == mixedUp {
			down = nil
		}
		return m.receives(ctx, m.slow[0], down, func() (*testpb.Payload, error) {
			in, err := s.Recv()
			return in.GetPayload(), err
		})
	}
	if m.kind != mixedBoth {
		if err := upwards(); err != nil {
			_, why := s.Recv() // the status
			return fmt.Errorf("%w: %w", err, why)
		}
		return downwards()
	}
	sent := make(chan error, 1)
	go func() { sent <- upwards() }()
	if err := downwards(); err != nil {
		return err
	}
	return <-sent
}

// A MixedService is the other side of [Mixed].
type MixedService struct {
	testpb.UnimplementedTestServiceServer
	moved atomic.Int64
}

// FullDuplexCall implements [testpb.TestServiceServer].
func (c *MixedService) FullDuplexCall(s grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
	seed, err := strconv.ParseUint(strings.Join(metadata.ValueFromIncomingContext(s.Context(), "seed"), ""), 10, 64)
	if err != nil {
		return err
	}
	m := newMixture(seed, &c.moved)
	upwards := func() error {
		up := m.up
		if m.kind == mixedDown {
			up = nil
		}
		return m.receives(s.Context(), m.slow[1], up, func() (*testpb.Payload, error) {
			in, err := s.Recv()
			return in.GetPayload(), err
		})
	}
	downwards := func() error {
		if m.kind == mixedUp {
			return nil
		}
		return m.sends(m.down, func(p *testpb.Payload) error { return s.Send(&testpb.StreamingOutputCallResponse{Payload: p}) })
	}
	if m.kind != mixedBoth {
		if err = upwards(); err == nil {
			err = downwards()
		}
		return withCode(err)
	}
	received := make(chan error, 1)
	go func() { received <- upwards() }()
	if err := downwards(); err != nil {
		return withCode(err)
	}
	up, err := loop.Await(s.Context(), func(resume func(error, error)) {
		go func() { resume(<-received, nil) }()
	})
	if err == loop.ErrNoTask {
		up, err = <-received, nil
	}
	return withCode(cmp.Or(up, err))
}

func withCode(err error) error {
	if err == nil {
		return nil
	}
	return status.Error(status.Code(err), err.Error())
}
