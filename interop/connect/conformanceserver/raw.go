package main

import (
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	pb "github.com/nearcall/nearcall/interop/connect/conformancepb"
)

// rawResponses is a service that is not in the suite. It has the methods of
// ConformanceService, and answers with the raw response of the first request, as far as a
// nearcall server can send it by its own protocol. The client in web/conformance calls it.
const rawResponses = "/nearcall.conformance.RawResponses/"

// respond handles calls to rawResponses.
func respond(_ any, s grpc.ServerStream) error {
	name, _ := grpc.MethodFromServerStream(s)
	method, ok := strings.CutPrefix(name, rawResponses)
	if !ok {
		return status.Errorf(codes.Unimplemented, "there is no method %s", name)
	}
	raw, err := receiveRaw(s, method)
	if err != nil {
		return err
	}
	if what := unsendable(raw); what != "" {
		return status.Error(codes.OutOfRange, "a nearcall server cannot send "+what) // no test expects this code
	}
	if trailersOnly(raw) {
		return end(s, raw.Headers)
	}
	header := metadataOf(raw.Headers)
	delete(header, "content-type")
	if err := s.SendHeader(header); err != nil {
		return err
	}
	for _, item := range raw.GetStream().GetItems() {
		m := new(emptypb.Empty) // the message's fields are unknown to it, and stay
		if err := proto.Unmarshal(bytesOf(item.Payload), m); err != nil {
			return err
		}
		if err := s.SendMsg(m); err != nil {
			return err
		}
	}
	return end(s, raw.Trailers)
}

func receiveRaw(s grpc.ServerStream, method string) (*pb.RawHTTPResponse, error) {
	switch method {
	case "Unary":
		in := new(pb.UnaryRequest)
		err := s.RecvMsg(in)
		return in.GetResponseDefinition().GetRawResponse(), err
	case "ClientStream":
		in := new(pb.ClientStreamRequest)
		err := s.RecvMsg(in)
		return in.GetResponseDefinition().GetRawResponse(), err
	case "ServerStream":
		in := new(pb.ServerStreamRequest)
		err := s.RecvMsg(in)
		return in.GetResponseDefinition().GetRawResponse(), err
	case "BidiStream":
		in := new(pb.BidiStreamRequest)
		err := s.RecvMsg(in)
		return in.GetResponseDefinition().GetRawResponse(), err
	}
	return nil, status.Errorf(codes.Unimplemented, "there is no method %s", method)
}

// unsendable returns what of raw a nearcall server cannot send; "" if it can send all.
func unsendable(raw *pb.RawHTTPResponse) string {
	header, last := metadataOf(raw.GetHeaders()), metadataOf(raw.GetTrailers())
	if trailersOnly(raw) {
		last = header
	}
	contentType := strings.Join(header["content-type"], ",")
	switch {
	case raw.GetStatusCode() != 0 && raw.GetStatusCode() != 200:
		return "an HTTP status"
	case contentType != "application/grpc" && contentType != "application/grpc+proto":
		return "the content type " + contentType
	case header["grpc-encoding"] != nil:
		return "compressed messages to a client that does not accept them"
	case last["grpc-status"] == nil:
		return "the end of a call without a status"
	case header["grpc-status"] != nil && !trailersOnly(raw):
		return "a status in the header"
	case raw.GetUnary() != nil, slices.ContainsFunc(raw.GetStream().GetItems(), malformed):
		return "a malformed message"
	}
	return ""
}

func malformed(item *pb.StreamContents_StreamItem) bool {
	return item.Flags != 0 || item.Length != nil
}

// trailersOnly reports whether raw has only headers, which then are the trailers.
func trailersOnly(raw *pb.RawHTTPResponse) bool {
	return raw.GetBody() == nil && len(raw.GetTrailers()) == 0
}

// end ends a call as trailers say.
func end(s grpc.ServerStream, trailers []*pb.Header) error {
	trailer := metadataOf(trailers)
	code, err := strconv.ParseUint(strings.Join(trailer["grpc-status"], ","), 10, 32)
	if err != nil {
		return err
	}
	message := strings.Join(trailer["grpc-message"], ",")
	for _, key := range []string{"content-type", "grpc-status", "grpc-message", "x-connect-trailers-only"} {
		delete(trailer, key)
	}
	s.SetTrailer(trailer)
	return status.Error(codes.Code(code), message)
}

func bytesOf(m *pb.MessageContents) []byte {
	switch data := m.GetData().(type) {
	case *pb.MessageContents_Binary:
		return data.Binary
	case *pb.MessageContents_Text:
		return []byte(data.Text)
	case *pb.MessageContents_BinaryMessage:
		return data.BinaryMessage.GetValue()
	}
	return nil
}
