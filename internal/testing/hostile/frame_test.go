package hostile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/nearcall/nearcall/internal/link"
)

// someFrames are frames of every kind.
func someFrames() []frame {
	detailed, err := status.New(codes.NotFound, "no such order").WithDetails(&testpb.SimpleRequest{FillUsername: true})
	if err != nil {
		panic(err)
	}
	return []frame{
		{kind: kindOpen, id: 1, open: link.CallHeader{Method: "/a.B/C", Profile: &link.Profile{}}},
		{kind: kindOpen, id: 300, timeout: time.Second, open: link.CallHeader{
			Method:   "/a.B/C",
			Profile:  &link.Profile{Authority: "host", UserAgent: "ua", ContentSubtype: "json", Encoding: "gzip"},
			Metadata: metadata.MD{"k": {"", "v"}, "none": {}, "x-bin": {"\x00\xff"}},
		}},
		{kind: kindHeader, id: 1, md: metadata.MD{}},
		{kind: kindHeader, id: 1, md: metadata.MD{"k": {"v"}}},
		{kind: kindData, id: 1, data: []byte("part")},
		{kind: kindData, id: 1, data: []byte{}, flags: flagLast},
		{kind: kindData, id: 1, data: []byte("all"), flags: flagLast | flagEndSend},
		{kind: kindEndSend, id: 1},
		{kind: kindEnd, id: 1},
		{kind: kindEnd, id: 1, md: metadata.MD{"t": {"v"}}, status: detailed},
		{kind: kindReset, id: 1, code: codeDeadline, text: "late"},
		{kind: kindReset, id: 1, code: codeBroken, text: "the method has control characters"},
		{kind: kindCredit, id: 1, n: 70000},
		{kind: kindDrain},
		{kind: kindBye, n: 7},
	}
}

func TestFramesSurviveTheirEncoding(t *testing.T) {
	for _, want := range someFrames() {
		got, err := decodeBody(appendBody(nil, &want))
		if err != nil {
			t.Errorf("%+v: %v", want, err)
			continue
		}
		if !proto.Equal(got.status.Proto(), want.status.Proto()) {
			t.Errorf("status %v, want %v", got.status, want.status)
		}
		got.status, want.status = nil, nil
		if !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
}

func TestDeadlineTravelsAsTheTimeLeft(t *testing.T) {
	now := time.Now()
	later := now.Add(time.Hour) // on the peer's clock
	for name, c := range map[string]struct{ deadline, want time.Time }{
		"none":   {time.Time{}, time.Time{}},
		"future": {now.Add(time.Second), later.Add(time.Second)},
		"past":   {now.Add(-time.Second), later.Add(1)},
	} {
		f := openFrame(&link.CallHeader{Profile: &link.Profile{}, Deadline: c.deadline}, now)
		if got := f.opened(later).Deadline; !got.Equal(c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestReasonsTravel(t *testing.T) {
	for _, c := range []struct {
		reason, is error
		text       string
	}{
		{context.Canceled, context.Canceled, ""},
		{fmt.Errorf("too late: %w", context.DeadlineExceeded), context.DeadlineExceeded, ""},
		{link.Unprocessed{Err: errors.New("busy")}, link.ErrUnprocessed, "busy"},
		{errors.New("boom"), nil, "boom"},
	} {
		f := resetFrame(c.reason)
		got := f.reason()
		if c.is != nil && !errors.Is(got, c.is) || !strings.Contains(got.Error(), c.text) {
			t.Errorf("%v arrives as %v", c.reason, got)
		}
	}
}

func TestStatusThatProtobufCannotCarry(t *testing.T) {
	f := frame{kind: kindEnd, id: 1, status: status.New(codes.Aborted, "bad \xff text")}
	got, err := decodeBody(appendBody(nil, &f))
	if err != nil || got.status.Code() != codes.Aborted || got.status.Message() != "bad \uFFFD text" {
		t.Errorf("%v, %v", got.status, err)
	}
}

// FuzzDecode: whatever decodes encodes to a frame that decodes to the same.
func FuzzDecode(f *testing.F) {
	for _, fr := range someFrames() {
		f.Add(appendBody(nil, &fr))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		fr, err := decodeBody(b)
		if err != nil {
			return
		}
		first := appendBody(nil, &fr)
		again, err := decodeBody(first)
		if err != nil {
			t.Fatalf("%x, decoded and encoded, is malformed: %v", b, err)
		}
		if second := appendBody(nil, &again); !bytes.Equal(first, second) {
			t.Fatalf("%x encodes as %x, and that as %x", b, first, second)
		}
	})
}
