package codec

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"runtime"
	"slices"
	"strings"
	"testing"

	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/nearcall/nearcall/internal/testing/needs"
)

const anyURL = "type.googleapis.com/google.protobuf.Any"

// inAnys returns value in n Anys, each in the next. The name of the type is written as name, in
// front of the value or behind it.
func inAnys(n int, name, value string, behind bool) string {
	before, after := `{"`+name+`":"`+anyURL+`","value":`, "}"
	if behind {
		before, after = `{"value":`, `,"`+name+`" : "`+anyURL+`"}`
	}
	return strings.Repeat(before, n) + value + strings.Repeat(after, n)
}

func single(text string) mem.BufferSlice { return mem.BufferSlice{mem.SliceBuffer(text)} }

func around(n int, open, middle, end string) string {
	return strings.Repeat(open, n) + middle + strings.Repeat(end, n)
}

func TestJSONIsNestedAtMostAHundredDeep(t *testing.T) {
	for name, c := range map[string]struct {
		text func(n int) string
		m    proto.Message
	}{
		"ListValue": {func(n int) string { return around(n, "[", "", "]") }, new(structpb.ListValue)},
		"Struct":    {func(n int) string { return around(n-1, `{"a":`, "{}", "}") }, new(structpb.Struct)},
		"Value":     {func(n int) string { return around(n/2, `[{"a":`, "0", "}]") + strings.Repeat(" ", n%2) }, new(structpb.Value)},
		"Any":       {func(n int) string { return inAnys(n-1, "@type", "{}", false) }, new(anypb.Any)},
		"Anys":      {func(n int) string { return inAnys(n-1, "@type", "{}", true) }, new(anypb.Any)},
		"unknown":   {func(n int) string { return `{"x":` + around(n-1, "[", "", "]") + "}" }, new(spb.Status)},
	} {
		if err := decode(JSON(), single(c.text(100)), c.m); err != nil {
			t.Errorf("%s, 100 deep: %v", name, err)
		}
		for _, n := range []int{102, 10_000, 1_000_000} {
			var format *FormatError
			if err := decode(JSON(), single(c.text(n)), c.m); !errors.As(err, &format) || !strings.Contains(err.Error(), "nested more than 100 deep") {
				t.Errorf("%s, %d deep: %v", name, n, err)
			}
		}
	}
}

// TestAnysInAnysAreReadInLinearTime counts the bytes that are allocated, which are more than
// those that are read, as the values are strings.
func TestAnysInAnysAreReadInLinearTime(t *testing.T) {
	const size = 1 << 18
	value := `{"x":[` + strings.Repeat(`"0123456789abcdef",`, size/19) + `0]}`
	for name, c := range map[string]struct {
		text string
		ok   bool
	}{
		"not nested": {value, true},
		"few":        {inAnys(timesAgain, "@type", value, false), true},
		"many":       {inAnys(95, "@type", value, false), false},
		"escaped":    {inAnys(95, `\u0040typ\u0065`, value, false), false},
		"behind":     {inAnys(95, "@type", value, true), false},
		"in details": {`{"@type":"a/google.rpc.Status","details":[` + inAnys(90, "@type", value, false) + "]}", false},
		"unended":    {strings.TrimRight(inAnys(95, "@type", value, false), "}"), false},
		"mixed":      {strings.TrimSuffix(inAnys(95, "@type", value, false), "}") + "]", false},
	} {
		var err error
		n := allocated(func() { err = decode(JSON(), single(c.text), new(anypb.Any)) })
		if (err == nil) != c.ok || err != nil && !errors.As(err, new(*FormatError)) {
			t.Errorf("%s: %v", name, err)
		}
		if n > 3*(timesAgain+2)*size {
			t.Errorf("%s: %d bytes were allocated for a message of %d", name, n, len(c.text))
		}
	}
}

// TestAnysInAnysAreWrittenInLinearTime encodes values that only a binary message can bring: JSON
// that is nested as deep is refused.
func TestAnysInAnysAreWrittenInLinearTime(t *testing.T) {
	needs.Time(t)
	inner := func(n int, value []byte, wrap func(*anypb.Any) proto.Message) proto.Message {
		m := &anypb.Any{TypeUrl: "/google.protobuf.BytesValue", Value: value}
		for range n {
			w := wrap(m)
			b, err := proto.Marshal(w)
			if err != nil {
				t.Fatal(err)
			}
			m = &anypb.Any{TypeUrl: "/" + string(w.ProtoReflect().Descriptor().FullName()), Value: b}
		}
		return m
	}
	anys := func(m *anypb.Any) proto.Message { return m }
	statuses := func(m *anypb.Any) proto.Message { return &spb.Status{Details: []*anypb.Any{m}} }
	const size = 1 << 20
	value := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), make([]byte, size))
	for name, c := range map[string]struct {
		m  proto.Message
		ok bool
	}{
		"small":    {inner(90, nil, anys), true},
		"few":      {inner(timesAgain-1, value, anys), true},
		"many":     {inner(99, value, anys), false},
		"deep":     {inner(9_000, nil, anys), false},
		"statuses": {inner(99, value, statuses), false},
		"a list":   {&spb.Status{Details: slices.Repeat([]*anypb.Any{{TypeUrl: "/google.protobuf.Any"}}, 50_000)}, true},
	} {
		var err error
		n := proto.Size(c.m)
		copied := allocated(func() { _, err = JSON().Append(nil, c.m) })
		if (err == nil) != c.ok || err != nil && !strings.Contains(err.Error(), "nest them less deep") {
			t.Errorf("%s: %v", name, err)
		}
		if most := 30*n + 4<<20; copied > most {
			t.Errorf("%s: %d bytes were allocated for a message of %d", name, copied, n)
		}
	}
}

// allocated returns how many bytes f allocates.
func allocated(f func()) int {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return int(after.TotalAlloc - before.TotalAlloc)
}

func TestAnErrorQuotesALittleOfAWrongValue(t *testing.T) {
	for _, text := range []string{
		`{"code":"` + strings.Repeat("a", 1<<20) + `"}`,
		`{"code":"` + strings.Repeat("é", 1<<20) + `"}`,
		`{"code":1` + strings.Repeat("0", 1<<20) + `}`,
		`{"details":[{"@type":"` + strings.Repeat("a", 1<<20) + `"}]}`,
	} {
		err := decode(JSON(), single(text), new(spb.Status))
		if err == nil || len(err.Error()) > maxErrorText+100 || !strings.Contains(err.Error(), text[50:200]) || strings.ContainsRune(err.Error(), '\ufffd') {
			t.Errorf("%.100s: %.2000v", text, err)
		}
	}
}

// An endsAfter is a context that ends after a number of looks at it.
type endsAfter struct{ looks int }

func (e *endsAfter) Err() error {
	if e.looks--; e.looks < 0 {
		return context.DeadlineExceeded
	}
	return nil
}

func TestJSONIsDecodedUntilAContextEnds(t *testing.T) {
	text := `{"details":[` + strings.Repeat(`{"@type":"`+anyURL+`","value":{}},`, 999) + `{}]}`
	ends := &endsAfter{1000}
	m := new(spb.Status)
	if err := decode(Until(JSON(), ends), single(text), m); err != nil || len(m.Details) != 1000 || ends.looks != 1 {
		t.Errorf("%v, %d details, %d looks left", err, len(m.Details), ends.looks)
	}
	ends = &endsAfter{10}
	if err := decode(Until(JSON(), ends), single(text), m); err != context.DeadlineExceeded || ends.looks < -3 {
		t.Errorf("%v, %d looks left", err, ends.looks)
	}
	if err := decode(Until(JSON(), &endsAfter{1}), single("7"), m); !errors.As(err, new(*FormatError)) {
		t.Errorf("a mistake before the end is reported as %v", err)
	}
	if Until(Proto(), ends) != Proto() {
		t.Error("other codecs are replaced")
	}
}

// FuzzNesting compares checkNesting with what encoding/json says of the same text.
func FuzzNesting(f *testing.F) {
	for _, s := range []string{
		`{}`, `[1,{"@type":"x"}]`, `{"@type":{"@type":["@type"]}}`, around(101, "[", "", "]"), around(100, `{"a":`, "1", "}"),
		inAnys(99, "@type", `"`+strings.Repeat("a", 9000)+`"`, false), inAnys(99, `\u0040type`, `"`+strings.Repeat(`\"`, 9000)+`"`, true),
		"{\"@type\"\n:0}", `["@type"]`, `{"\\@type":"\"@type\":"}`, `{"a":"@type"}`, `{"@type":0,"@\u0074ype":1}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		got := checkNesting(b)
		if !json.Valid(b) {
			return
		}
		want := nestingOf(b)
		if (got == nil) != (want == "") || got != nil && !strings.Contains(got.Error(), want) {
			t.Errorf("%.300s: got %v, want %q", b, got, want)
		}
	})
}

// nestingOf returns a part of the error that checkNesting must return for valid JSON.
func nestingOf(b []byte) string {
	type level struct {
		begin         int64
		object, typed bool
		tokens        int
	}
	var levels []level
	again := int64(0)
	d := json.NewDecoder(bytes.NewReader(b))
	for {
		tok, err := d.Token()
		if err == io.EOF {
			return ""
		}
		if tok == json.Delim('}') || tok == json.Delim(']') {
			last := levels[len(levels)-1]
			levels = levels[:len(levels)-1]
			if last.typed {
				again += d.InputOffset() - last.begin
			}
			if again > int64(timesAgain*len(b)+freeAgain) {
				return "google.protobuf.Any"
			}
			continue
		}
		if len(levels) > 0 {
			in := &levels[len(levels)-1]
			if in.object && in.tokens%2 == 0 && tok == "@type" {
				in.typed = true
			}
			in.tokens++
		}
		if tok == json.Delim('{') || tok == json.Delim('[') {
			if len(levels) == maxNesting {
				return "100 deep"
			}
			levels = append(levels, level{begin: d.InputOffset(), object: tok == json.Delim('{')})
		}
	}
}

func TestTheNameOfATypeAsAValueMakesNoAny(t *testing.T) {
	text := around(99, `{"a":["@type"],"b":"@type","c":`, `"`+strings.Repeat("x", 1<<17)+`"`, "}")
	if err := decode(JSON(), single(text), new(structpb.Struct)); err != nil {
		t.Error(err)
	}
	if err := decode(JSON(), single(`"@type"`), new(wrapperspb.StringValue)); err != nil {
		t.Error(err)
	}
}
