package main

import (
	"context"
	"encoding/base64"
	"io"
	"strings"
	"time"

	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	pb "github.com/nearcall/nearcall/interop/connect/conformancepb"
)

// A service does what each request asks it to do, and sends back what it has seen.
type service struct {
	pb.UnimplementedConformanceServiceServer
}

func (service) Unary(ctx context.Context, in *pb.UnaryRequest) (*pb.UnaryResponse, error) {
	payload, err := unary(ctx, in.ResponseDefinition, in)
	if err != nil {
		return nil, err
	}
	return &pb.UnaryResponse{Payload: payload}, nil
}

func (service) IdempotentUnary(ctx context.Context, in *pb.IdempotentUnaryRequest) (*pb.IdempotentUnaryResponse, error) {
	payload, err := unary(ctx, in.ResponseDefinition, in)
	if err != nil {
		return nil, err
	}
	return &pb.IdempotentUnaryResponse{Payload: payload}, nil
}

func (service) ClientStream(s grpc.ClientStreamingServer[pb.ClientStreamRequest, pb.ClientStreamResponse]) error {
	var def *pb.UnaryResponseDefinition
	var seen []proto.Message
	for {
		in, err := s.Recv()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		if len(seen) == 0 {
			def = in.ResponseDefinition
		}
		seen = append(seen, in)
	}
	payload, err := unary(s.Context(), def, seen...)
	if err != nil {
		return err
	}
	return s.SendAndClose(&pb.ClientStreamResponse{Payload: payload})
}

func (service) ServerStream(in *pb.ServerStreamRequest, s grpc.ServerStreamingServer[pb.ServerStreamResponse]) error {
	def := in.ResponseDefinition
	if err := setMetadata(s, def, len(def.GetResponseData()) > 0); err != nil {
		return err
	}
	for i, data := range def.GetResponseData() {
		payload := &pb.ConformancePayload{Data: data}
		if i == 0 {
			payload.RequestInfo = infoOf(s.Context(), in)
		}
		if err := pause(s.Context(), def.GetResponseDelayMs()); err != nil {
			return err
		}
		if err := s.Send(&pb.ServerStreamResponse{Payload: payload}); err != nil {
			return err
		}
	}
	return streamError(s.Context(), def, in)
}

func (service) BidiStream(s grpc.BidiStreamingServer[pb.BidiStreamRequest, pb.BidiStreamResponse]) error {
	var def *pb.StreamResponseDefinition
	var seen []proto.Message // since the last response
	full, first, sent := false, true, 0
	reply := func() error {
		payload := &pb.ConformancePayload{Data: def.ResponseData[sent]}
		if sent == 0 {
			payload.RequestInfo = infoOf(s.Context(), seen...)
		} else if full && len(seen) > 0 {
			payload.RequestInfo = &pb.ConformancePayload_RequestInfo{Requests: anyOf(seen)}
		}
		if err := pause(s.Context(), def.GetResponseDelayMs()); err != nil {
			return err
		}
		sent++
		seen = nil
		return s.Send(&pb.BidiStreamResponse{Payload: payload})
	}
	for {
		in, err := s.Recv()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		seen = append(seen, in)
		if first {
			def, full, first = in.ResponseDefinition, in.FullDuplex, false
			if err := setMetadata(s, def, full && len(def.GetResponseData()) > 0); err != nil {
				return err
			}
		}
		if full {
			if sent >= len(def.GetResponseData()) {
				break
			}
			if err := reply(); err != nil {
				return err
			}
		}
	}
	for sent < len(def.GetResponseData()) {
		if err := reply(); err != nil {
			return err
		}
	}
	if sent > 0 {
		seen = nil
	}
	return streamError(s.Context(), def, seen...)
}

// unary does what def asks of a call with one response.
func unary(ctx context.Context, def *pb.UnaryResponseDefinition, seen ...proto.Message) (*pb.ConformancePayload, error) {
	if err := grpc.SetHeader(ctx, metadataOf(def.GetResponseHeaders())); err != nil {
		return nil, err
	}
	if err := grpc.SetTrailer(ctx, metadataOf(def.GetResponseTrailers())); err != nil {
		return nil, err
	}
	if err := pause(ctx, def.GetResponseDelayMs()); err != nil {
		return nil, err
	}
	info := infoOf(ctx, seen...)
	if e := def.GetError(); e != nil {
		return nil, errorOf(e, info)
	}
	return &pb.ConformancePayload{Data: def.GetResponseData(), RequestInfo: info}, nil
}

// setMetadata sets header and trailer of a stream, and sends the header if now is set.
func setMetadata(s grpc.ServerStream, def *pb.StreamResponseDefinition, now bool) error {
	s.SetTrailer(metadataOf(def.GetResponseTrailers()))
	header := metadataOf(def.GetResponseHeaders())
	if now {
		return s.SendHeader(header)
	}
	return s.SetHeader(header)
}

// streamError returns the error that def asks for. It has what was seen if there was no
// response to send it with.
func streamError(ctx context.Context, def *pb.StreamResponseDefinition, seen ...proto.Message) error {
	e := def.GetError()
	switch {
	case e == nil:
		return nil
	case len(def.ResponseData) > 0:
		return errorOf(e, nil)
	}
	return errorOf(e, infoOf(ctx, seen...))
}

func errorOf(e *pb.Error, info *pb.ConformancePayload_RequestInfo) error {
	details := e.Details
	if info != nil {
		a, err := anypb.New(info)
		if err != nil {
			return err
		}
		details = append(details, a)
	}
	return status.FromProto(&spb.Status{Code: int32(e.Code), Message: e.GetMessage(), Details: details}).Err()
}

// infoOf returns what the handler has seen of a call.
func infoOf(ctx context.Context, seen ...proto.Message) *pb.ConformancePayload_RequestInfo {
	info := &pb.ConformancePayload_RequestInfo{Requests: anyOf(seen)}
	if deadline, ok := ctx.Deadline(); ok {
		info.TimeoutMs = proto.Int64(max(time.Until(deadline), 0).Milliseconds())
	}
	md, _ := metadata.FromIncomingContext(ctx)
	for key, values := range md {
		h := &pb.Header{Name: key}
		for _, v := range values {
			if strings.HasSuffix(key, "-bin") {
				v = base64.RawStdEncoding.EncodeToString([]byte(v))
			}
			h.Value = append(h.Value, v)
		}
		info.RequestHeaders = append(info.RequestHeaders, h)
	}
	return info
}

func anyOf(seen []proto.Message) []*anypb.Any {
	var all []*anypb.Any
	for _, m := range seen {
		if a, err := anypb.New(m); err == nil {
			all = append(all, a)
		}
	}
	return all
}

func metadataOf(headers []*pb.Header) metadata.MD {
	md := metadata.MD{}
	for _, h := range headers {
		key := strings.ToLower(h.Name)
		for _, v := range h.Value {
			if strings.HasSuffix(key, "-bin") {
				if b, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(v, "=")); err == nil {
					v = string(b)
				}
			}
			md[key] = append(md[key], v)
		}
	}
	return md
}

// pause waits, as a request asks.
func pause(ctx context.Context, ms uint32) error {
	if ms == 0 {
		return nil
	}
	t := time.NewTimer(time.Duration(ms) * time.Millisecond)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}
