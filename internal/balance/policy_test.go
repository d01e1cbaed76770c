package balance_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/balancer/base"
	"google.golang.org/grpc/balancer/roundrobin"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/testing/leak"
)

// An alias is round_robin under another name.
type alias struct {
	balancer.Builder
	name string
}

func (a alias) Name() string { return a.name }

const aliases = 20 // more than there are wrappers

func init() {
	for i := range aliases {
		balancer.Register(alias{balancer.Get(roundrobin.Name), fmt.Sprintf("alias_%d", i)})
	}
	balancer.Register(eagerBuilder{})
	balancer.Register(handingBuilder{})
	balancer.Register(base.NewBalancerBuilder("counting", countingBuilder{}, base.Config{}))
}

func policyConfig(name string) string {
	return fmt.Sprintf(`{"loadBalancingConfig":[{%q:{}}]}`, name)
}

// Programs that use more policies than there are wrappers lose no call between two of them.
func TestMorePoliciesThanWrappers(t *testing.T) {
	inproc := "inproc:" + t.Name()
	near(t, inproc, service{})
	r := manual.NewBuilderWithScheme("changing")
	state := resolver.State{Addresses: []resolver.Address{{Addr: inproc}, {Addr: ordinary(t, service{})}}}
	r.InitialState(state)
	conn, err := nearcall.NewClient("changing:///any", nearcall.WithResolvers(r), nearcall.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client, ctx := testpb.NewTestServiceClient(conn), soon(t)
	if _, err := client.EmptyCall(ctx, &testpb.Empty{}); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var callers sync.WaitGroup
	for range 4 {
		callers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := client.EmptyCall(ctx, &testpb.Empty{}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for i := range 2 * aliases {
		state.ServiceConfig = r.CC().ParseServiceConfig(policyConfig(fmt.Sprintf("alias_%d", i%aliases)))
		r.UpdateState(state)
		if _, err := client.EmptyCall(ctx, &testpb.Empty{}); err != nil {
			t.Fatalf("with policy %d: %v", i, err)
		}
	}
	close(stop)
	callers.Wait()
}

// eagerBuilder builds policies that make their SubConn while they are built, and are told of its state
// by UpdateSubConnState, as all policies once were.
type eagerBuilder struct{}

func (eagerBuilder) Name() string { return "eager" }

func (eagerBuilder) Build(cc balancer.ClientConn, o balancer.BuildOptions) balancer.Balancer {
	//lint:ignore SA1019 such policies pass no listener
	sc, err := cc.NewSubConn([]resolver.Address{{Addr: o.Target.Endpoint()}}, balancer.NewSubConnOptions{})
	if err != nil {
		panic(err)
	}
	sc.Connect()
	return &eager{cc: cc}
}

type eager struct{ cc balancer.ClientConn }

func (*eager) UpdateClientConnState(balancer.ClientConnState) error { return nil }
func (*eager) ResolverError(error)                                  {}
func (*eager) ExitIdle()                                            {}
func (*eager) Close()                                               {}

func (e *eager) UpdateSubConnState(sc balancer.SubConn, s balancer.SubConnState) {
	if s.ConnectivityState == connectivity.Ready {
		e.cc.UpdateState(balancer.State{ConnectivityState: s.ConnectivityState, Picker: fixed{sc}})
	}
}

// A fixed picker always picks the same SubConn.
type fixed struct{ sc balancer.SubConn }

func (f fixed) Pick(balancer.PickInfo) (balancer.PickResult, error) {
	return balancer.PickResult{SubConn: f.sc}, nil
}

func TestAPolicyThatConnectsWhileItIsBuilt(t *testing.T) {
	inproc := "inproc:" + t.Name()
	near(t, inproc, service{})
	for name, addr := range map[string]string{"nearcall": inproc, "gRPC": ordinary(t, service{})} {
		t.Run(name, func(t *testing.T) {
			conn, err := nearcall.NewClient("passthrough:///"+addr, nearcall.WithDefaultServiceConfig(policyConfig("eager")), nearcall.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := testpb.NewTestServiceClient(conn).EmptyCall(soon(t), &testpb.Empty{}); err != nil {
				t.Error(err)
			}
		})
	}
}

// handingBuilder builds policies that connect to the newest address, publish it, and shut the last one
// down, as graceful switches do.
type handingBuilder struct{}

func (handingBuilder) Name() string { return "handing" }

func (handingBuilder) Build(cc balancer.ClientConn, _ balancer.BuildOptions) balancer.Balancer {
	return &handing{cc: cc}
}

type handing struct {
	cc   balancer.ClientConn
	last balancer.SubConn
}

// handedOver is called after a handing policy has shut the last SubConn down.
var handedOver atomic.Pointer[func()]

func (h *handing) UpdateClientConnState(s balancer.ClientConnState) error {
	var sc balancer.SubConn
	//lint:ignore SA1019 as policies of programs do
	sc, err := h.cc.NewSubConn(s.ResolverState.Addresses, balancer.NewSubConnOptions{StateListener: func(s balancer.SubConnState) {
		if s.ConnectivityState != connectivity.Ready {
			return
		}
		h.cc.UpdateState(balancer.State{ConnectivityState: connectivity.Ready, Picker: fixed{sc}})
		if h.last != nil {
			h.last.Shutdown()
			(*handedOver.Load())()
		}
		h.last = sc
	}})
	if err == nil {
		sc.Connect()
	}
	return err
}

func (*handing) ResolverError(error)                                        {}
func (*handing) UpdateSubConnState(balancer.SubConn, balancer.SubConnState) {}
func (*handing) ExitIdle()                                                  {}
func (*handing) Close()                                                     {}

// held are credentials that hold a call between its pick and its first byte.
type held struct {
	reached chan struct{}
	until   <-chan struct{}
}

func (h held) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	select {
	case h.reached <- struct{}{}:
	default: // another attempt
	}
	<-h.until
	return nil, nil
}

func (held) RequireTransportSecurity() bool { return false }

// A call whose SubConn is shut down between its pick and its first byte is made on another one, while
// the policy has not heard of the end yet, and has published its picker.
func TestACallWhoseSubConnIsShutDownAfterItsPick(t *testing.T) {
	echo := service{duplex: func(s grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
		if err := s.Send(&testpb.StreamingOutputCallResponse{}); err != nil {
			return err
		}
		_, err := s.Recv()
		return err
	}}
	for kind, serve := range map[string]func(t *testing.T, n string) string{
		"ordinary": func(t *testing.T, _ string) string { return ordinary(t, echo) },
		"nearcall": func(t *testing.T, n string) string {
			near(t, "inproc:"+t.Name()+n, echo)
			return "inproc:" + t.Name() + n
		},
	} {
		for name, call := range map[string]func(testpb.TestServiceClient, ...grpc.CallOption) error{
			"unary": func(c testpb.TestServiceClient, opts ...grpc.CallOption) error {
				_, err := c.EmptyCall(soon(t), &testpb.Empty{}, opts...)
				return err
			},
			"stream": func(c testpb.TestServiceClient, opts ...grpc.CallOption) error {
				s, err := c.FullDuplexCall(soon(t), opts...)
				if err == nil {
					_, err = s.Recv()
				}
				return err
			},
		} {
			t.Run(kind+", "+name, func(t *testing.T) {
				r := manual.NewBuilderWithScheme("handing")
				r.InitialState(resolver.State{Addresses: []resolver.Address{{Addr: serve(t, "1")}}})
				conn, err := nearcall.NewClient("handing:///any", nearcall.WithResolvers(r), nearcall.WithDefaultServiceConfig(policyConfig("handing")),
					nearcall.WithTransportCredentials(insecure.NewCredentials()))
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				client := testpb.NewTestServiceClient(conn)
				open, err := client.FullDuplexCall(soon(t)) // keeps the first connection
				if err == nil {
					_, err = open.Recv()
				}
				if err != nil {
					t.Fatal(err)
				}
				until, ended := make(chan struct{}), make(chan struct{})
				goOn := func() {
					close(until)
					<-ended
				}
				handedOver.Store(&goOn)
				h := held{make(chan struct{}, 1), until}
				go func() {
					defer close(ended)
					if err := call(client, grpc.PerRPCCredentials(h)); err != nil {
						t.Error(err)
					}
				}()
				<-h.reached
				r.UpdateState(resolver.State{Addresses: []resolver.Address{{Addr: serve(t, "2")}}})
				<-ended
			})
		}
	}
}

// picked and done count what counting pickers pick, and the calls of Done.
var picked, done, twice atomic.Int64

type countingBuilder struct{}

func (countingBuilder) Build(info base.PickerBuildInfo) balancer.Picker {
	var p countingPicker
	for sc := range info.ReadySCs {
		p = append(p, sc)
	}
	if len(p) == 0 {
		return base.NewErrPicker(balancer.ErrNoSubConnAvailable)
	}
	return p
}

type countingPicker []balancer.SubConn

func (p countingPicker) Pick(balancer.PickInfo) (balancer.PickResult, error) {
	picked.Add(1)
	var called atomic.Bool
	return balancer.PickResult{SubConn: p[rand.IntN(len(p))], Done: func(balancer.DoneInfo) {
		if called.Swap(true) {
			twice.Add(1)
		}
		done.Add(1)
	}}, nil
}

// A picker is told once of the end of each attempt: of calls that succeed, fail, are cancelled at any
// moment, or are lost with their server.
func TestDoneIsCalledOnceForEachPick(t *testing.T) {
	picked.Store(0)
	done.Store(0)
	twice.Store(0)
	echo := service{duplex: func(s grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
		for {
			if _, err := s.Recv(); err != nil {
				return err
			}
			if err := s.Send(&testpb.StreamingOutputCallResponse{}); err != nil {
				return err
			}
		}
	}}
	inproc := "inproc:" + t.Name()
	lis := listen(t)
	far := nearcall.NewServer()
	testpb.RegisterTestServiceServer(far, echo)
	go far.Serve(lis)
	defer far.Stop()
	_, stopServer := nearListening(t, inproc, echo)
	conn := dial(t, []string{inproc, "tcp:" + lis.Addr().String(), ordinary(t, echo)}, nearcall.WithDefaultServiceConfig(policyConfig("counting")),
		nearcall.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: time.Millisecond, MaxDelay: time.Millisecond}, MinConnectTimeout: 5 * time.Second}))
	client := testpb.NewTestServiceClient(conn)
	if _, err := client.EmptyCall(soon(t), &testpb.Empty{}); err != nil {
		t.Fatal(err)
	}
	var callers sync.WaitGroup
	stop := make(chan struct{})
	for range 8 {
		callers.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rand.IntN(2000))*time.Microsecond)
				switch n % 3 {
				case 0:
					_, _ = client.EmptyCall(ctx, &testpb.Empty{})
				case 1:
					_, _ = client.UnaryCall(ctx, &testpb.SimpleRequest{}) // not implemented
				case 2:
					s, err := client.FullDuplexCall(ctx)
					for err == nil && rand.IntN(3) > 0 {
						if err = s.Send(&testpb.StreamingOutputCallRequest{}); err == nil {
							_, err = s.Recv()
						}
					}
				}
				cancel()
			}
		})
	}
	for range 10 {
		time.Sleep(30 * time.Millisecond)
		stopServer()
		_, stopServer = nearListening(t, inproc, echo)
	}
	close(stop)
	callers.Wait()
	_ = conn.Close()
	leak.Within(t, 5*time.Second, "Done of each pick", func() {
		for picked.Load() != done.Load() {
			time.Sleep(time.Millisecond)
		}
	})
	if picked.Load() == 0 || twice.Load() != 0 {
		t.Errorf("%d picks, %d of them were ended twice", picked.Load(), twice.Load())
	}
}

// A resolver can return a service config that another connection has parsed.
func TestAServiceConfigThatAnotherConnectionHasParsed(t *testing.T) {
	r := manual.NewBuilderWithScheme("other")
	r.InitialState(resolver.State{})
	other, err := grpc.NewClient("other:///any", grpc.WithResolvers(r), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	other.Connect()
	leak.Within(t, 5*time.Second, "the resolver of the other connection", func() {
		for other.GetState() == connectivity.Idle {
			time.Sleep(time.Millisecond)
		}
	})
	inproc := "inproc:" + t.Name()
	near(t, inproc, service{})
	for name, config := range map[string]string{
		"a policy": policyConfig(roundrobin.Name), "no policy": "{}", "retries": retries, "wrong": `{"loadBalancingConfig": 1}`,
	} {
		t.Run(name, func(t *testing.T) {
			parsed := r.CC().ParseServiceConfig(config)
			own := manual.NewBuilderWithScheme("own")
			own.InitialState(resolver.State{Addresses: []resolver.Address{{Addr: inproc}}, ServiceConfig: parsed})
			conn, err := nearcall.NewClient("own:///any", nearcall.WithResolvers(own), nearcall.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			_, err = testpb.NewTestServiceClient(conn).EmptyCall(soon(t), &testpb.Empty{})
			if wrong := parsed.Err != nil; (err != nil) != wrong {
				t.Errorf("the call ends with %v; the config's error is %v", err, parsed.Err)
			}
		})
	}
}
