package chaos

import (
	"context"
	"fmt"
	"hash/crc32"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
)

// A plan is one call.
type plan struct {
	kind     int // unary or a kind of stream
	tag      uint64
	end, act int
	at       int   // index of the message at which end or act happens
	sizes    []int // of the messages, in bytes
	ready    bool  // WaitForReady
	after    time.Duration
}

func (p *plan) String() string {
	return fmt.Sprintf("call %x of kind %d: its caller does %d, its handler %d, at message %d of %d", p.tag, p.kind, p.end, p.act, p.at, len(p.sizes))
}

// allowed returns the codes that the plan allows.
func (p *plan) allowed(s *Scenario) []codes.Code {
	var a []codes.Code
	switch {
	case p.sizes[0] > maxRecv:
		a = append(a, codes.ResourceExhausted)
	case p.act == doFail:
		a = append(a, codes.FailedPrecondition)
	case p.act == doPanic, p.act == doGoexit:
		a = append(a, codes.Internal)
	case p.act == doKill:
		a = append(a, codes.OK, codes.Canceled)
	case p.act != doWait:
		a = append(a, codes.OK)
	}
	switch p.end {
	case doCancelled, doCancel, doLeave:
		a = append(a, codes.Canceled)
	case doDeadline:
		a = append(a, codes.DeadlineExceeded)
	}
	if s.Storm || s.faulty() {
		a = append(a, codes.Unavailable)
	}
	if s.Closing {
		a = append(a, codes.Canceled)
	}
	return a
}

func (p *plan) unary(ctx context.Context, client testpb.TestServiceClient, opts []grpc.CallOption) error {
	in := &testpb.SimpleRequest{Payload: Message(p.tag, 0, p.sizes[0], Request)}
	out, err := client.UnaryCall(ctx, in, opts...)
	scribble(in.Payload)
	if err == nil {
		err = wrong(Check(out.Payload, p.tag, 0, p.sizes[0], Reply))
		scribble(out.Payload)
	}
	return err
}

func (p *plan) output(ctx context.Context, cancel func(), client testpb.TestServiceClient, opts []grpc.CallOption) error {
	in := &testpb.StreamingOutputCallRequest{Payload: Message(p.tag, 0, p.sizes[0], Request)}
	for _, size := range p.sizes {
		in.ResponseParameters = append(in.ResponseParameters, &testpb.ResponseParameters{Size: int32(size)})
	}
	s, err := client.StreamingOutputCall(ctx, in, opts...)
	if err != nil {
		return err
	}
	scribble(in.Payload)
	return p.receive(cancel, s.Recv)
}

// receive receives all replies.
func (p *plan) receive(cancel func(), recv func() (*testpb.StreamingOutputCallResponse, error)) error {
	for i := 0; ; i++ {
		if p.end == doLeave && i == p.at {
			cancel()
		}
		m, err := recv()
		if err == io.EOF {
			if i != len(p.sizes) {
				return wrong(fmt.Errorf("%d replies of %d came", i, len(p.sizes)))
			}
			return nil
		}
		if err != nil {
			return err
		}
		if i == len(p.sizes) {
			return wrong(fmt.Errorf("more than %d replies came", i))
		}
		if err := Check(m.Payload, p.tag, i, p.sizes[i], Reply); err != nil {
			return wrong(err)
		}
		scribble(m.Payload)
	}
}

func (p *plan) input(ctx context.Context, cancel func(), client testpb.TestServiceClient, opts []grpc.CallOption) error {
	s, err := client.StreamingInputCall(ctx, opts...)
	if err != nil {
		return err
	}
	sum := uint32(0)
	for i, size := range p.sizes {
		if p.end == doLeave && i == p.at {
			cancel()
		}
		m := Message(p.tag, i, size, Request)
		sum = crc32.Update(sum, crc32.IEEETable, m.Body)
		if err := s.Send(&testpb.StreamingInputCallRequest{Payload: m}); err != nil {
			break
		}
		scribble(m)
	}
	out, err := s.CloseAndRecv()
	if err == nil && uint32(out.AggregatedPayloadSize) != sum {
		err = wrong(fmt.Errorf("the sum is %x, want %x", uint32(out.AggregatedPayloadSize), sum))
	}
	return err
}

func (p *plan) both(ctx context.Context, cancel func(), client testpb.TestServiceClient, opts []grpc.CallOption) error {
	open := client.FullDuplexCall
	if p.kind == halfKind {
		open = client.HalfDuplexCall
	}
	s, err := open(ctx, opts...)
	if err != nil {
		return err
	}
	var sender sync.WaitGroup
	sender.Go(func() {
		for i, size := range p.sizes {
			m := Message(p.tag, i, size, Request)
			if err := s.Send(&testpb.StreamingOutputCallRequest{Payload: m}); err != nil {
				return
			}
			scribble(m)
		}
		_ = s.CloseSend()
	})
	err = p.receive(cancel, s.Recv)
	cancel() // in case the handler ended first and Send blocks
	sender.Wait()
	return err
}
