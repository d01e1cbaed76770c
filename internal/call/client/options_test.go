package client

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/call"
	"github.com/nearcall/nearcall/internal/codec"
	"github.com/nearcall/nearcall/internal/testing/callservice"
	"github.com/nearcall/nearcall/internal/testing/needs"
)

// tagged implements grpc's two older codec interfaces.
type tagged struct{ name string }

func (c tagged) Name() string                { return c.name }
func (c tagged) String() string              { return c.name }
func (tagged) Marshal(v any) ([]byte, error) { return v.(*msg).Value, nil }
func (tagged) Unmarshal(data []byte, v any) error {
	v.(*msg).Value = append([]byte(nil), data...)
	return nil
}

// taggedV2 is the same for encoding.CodecV2.
type taggedV2 struct{ name string }

func (c taggedV2) Name() string { return c.name }
func (taggedV2) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.(*msg).Value)}, nil
}
func (taggedV2) Unmarshal(data mem.BufferSlice, v any) error {
	v.(*msg).Value = data.Materialize()
	return nil
}

func init() { encoding.RegisterCodec(tagged{"tagged"}) }

// settled holds an option of each type of grpc-go, by the type's name. ok checks that the
// option has had its effect.
var settled = map[string]struct {
	option grpc.CallOption
	ok     func(*callInfo) bool
}{
	"EmptyCallOption":             {grpc.EmptyCallOption{}, isDefault},
	"HeaderCallOption":            {grpc.Header(new(metadata.MD)), reporting},
	"TrailerCallOption":           {grpc.Trailer(new(metadata.MD)), reporting},
	"PeerCallOption":              {grpc.Peer(new(peer.Peer)), reporting},
	"OnFinishCallOption":          {grpc.OnFinish(func(error) {}), reporting},
	"FailFastCallOption":          {grpc.WaitForReady(true), func(ci *callInfo) bool { return ci.waitForReady }},
	"MaxRecvMsgSizeCallOption":    {grpc.MaxCallRecvMsgSize(7), func(ci *callInfo) bool { return ci.maxRecv == 7 && ci.maxSend == call.NoLimit }},
	"MaxSendMsgSizeCallOption":    {grpc.MaxCallSendMsgSize(7), func(ci *callInfo) bool { return ci.maxSend == 7 && ci.maxRecv == defaultMaxRecv }},
	"AuthorityOverrideCallOption": {grpc.CallAuthority("a"), func(ci *callInfo) bool { return ci.authority == "a" }},
	"PerRPCCredsCallOption":       {grpc.PerRPCCredentials(card{}), func(ci *callInfo) bool { return ci.creds != nil }},
	"CompressorCallOption":        {grpc.UseCompressor("gzip"), func(ci *callInfo) bool { return ci.encoding == "gzip" }},
	"ContentSubtypeCallOption":    {grpc.CallContentSubtype("TAGGED"), func(ci *callInfo) bool { return ci.subtype == "tagged" && ci.codec == codec.WrapV1(tagged{"tagged"}) }},
	"ForceCodecCallOption":        {grpc.ForceCodec(tagged{"Forced"}), func(ci *callInfo) bool { return ci.subtype == "forced" && ci.codec == codec.WrapV1(tagged{"Forced"}) }},
	"ForceCodecV2CallOption":      {grpc.ForceCodecV2(taggedV2{"Forced"}), func(ci *callInfo) bool { return ci.subtype == "forced" && ci.codec == codec.WrapV2(taggedV2{"Forced"}) }},
	//lint:ignore SA1019 programs use it
	"CustomCodecCallOption":           {grpc.CallCustomCodec(tagged{"Custom"}), func(ci *callInfo) bool { return ci.codec.Name() == "Custom" }},
	"MaxRetryRPCBufferSizeCallOption": {grpc.MaxRetryRPCBufferSize(7), isDefault}, // nothing is kept for retries
	"StaticMethodCallOption":          {grpc.StaticMethod(), isDefault},
	"acceptCompressorsCallOption":     {experimental.AcceptCompressors("gzip"), func(ci *callInfo) bool { return slices.Equal(ci.accept, []string{"gzip"}) }},
}

func isDefault(ci *callInfo) bool {
	return ci.maxRecv == defaultMaxRecv && ci.maxSend == call.NoLimit && ci.codec == call.DefaultCodec() &&
		ci.subtype == "" && ci.encoding == "" && ci.authority == "" && ci.creds == nil && !ci.waitForReady && !ci.reports
}

func reporting(ci *callInfo) bool { return ci.reports }

// A hidden option wraps a call option in a type that grpc-go does not know.
type hidden struct{ callOption }

type callOption = grpc.CallOption

func TestEachCallOptionIsHonouredOrRefused(t *testing.T) {
	for name, c := range settled {
		if got := reflect.TypeOf(c.option).Name(); got != name {
			t.Errorf("%s stands for a %s", name, got)
		}
		var ci callInfo
		err := ci.apply([]grpc.CallOption{c.option}, &noConfig, call.DefaultCodec())
		if err != nil || !c.ok(&ci) {
			t.Errorf("%s: %v, %+v", name, err, ci)
		}
	}
	err := new(callInfo).apply([]grpc.CallOption{hidden{grpc.WaitForReady(true)}}, &noConfig, call.DefaultCodec())
	callservice.WantCode(t, err, codes.Internal)
}

// grpc-go's options are its types with a method before. A new one must be honoured or
// refused on purpose.
func TestAllCallOptionsOfGRPCAreKnown(t *testing.T) {
	needs.Program(t, "go")
	dir, err := exec.Command("go", "list", "-f", "{{.Dir}}", "google.golang.org/grpc").Output()
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(dir)), "*.go"))
	if err != nil || len(files) < 10 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	found := 0
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Recv == nil || fn.Name.Name != "before" {
				continue
			}
			found++
			typ := fn.Recv.List[0].Type
			if star, ok := typ.(*ast.StarExpr); ok {
				typ = star.X
			}
			if name := fmt.Sprint(typ); settled[name].option == nil {
				t.Errorf("this test does not know grpc-go's call option %s", name)
			}
		}
	}
	if found != len(settled)-1 { // StaticMethodCallOption has EmptyCallOption's
		t.Errorf("%d call options were found, %d are known", found, len(settled))
	}
}

// A pointer to an option has the option's methods, too, so grpc-go honours it.
func TestPointersToCallOptionsAreHonouredOrRefused(t *testing.T) {
	for name, option := range map[string]grpc.CallOption{
		"limit":      &grpc.MaxRecvMsgSizeCallOption{MaxRecvMsgSize: 7},
		"compressor": &grpc.CompressorCallOption{CompressorType: "gzip"},
	} {
		var ci callInfo
		if err := ci.apply([]grpc.CallOption{option}, &noConfig, call.DefaultCodec()); err == nil && isDefault(&ci) {
			t.Errorf("%s: a pointer to it is dropped", name)
		}
	}
}

func TestForeignCallOptionsDoNothing(t *testing.T) {
	type foreign struct{ grpc.EmptyCallOption }
	var ci callInfo
	err := ci.apply([]grpc.CallOption{foreign{}, &foreign{}}, &noConfig, call.DefaultCodec())
	if err != nil || !isDefault(&ci) {
		t.Errorf("%v, %+v", err, ci)
	}
}

func TestANilCallOptionIsNoPanic(t *testing.T) {
	var ci callInfo
	if err := ci.apply([]grpc.CallOption{nil}, &noConfig, call.DefaultCodec()); err != nil {
		callservice.WantCode(t, err, codes.Internal)
	}
}

// In grpc-go a nil codec means the default codec.
func TestANilCodecIsTheDefault(t *testing.T) {
	defer func() {
		if r := recover(); r != nil {
			t.Errorf("panic: %v", r)
		}
	}()
	var ci callInfo
	if err := ci.apply([]grpc.CallOption{grpc.ForceCodecV2(nil)}, &noConfig, call.DefaultCodec()); err != nil || !isDefault(&ci) {
		t.Errorf("%v, %+v", err, ci)
	}
}

// The name of a grpc.Codec does not go into the content-type.
func TestACodecOfTheFirstGenerationNamesNoSubtype(t *testing.T) {
	var ci callInfo
	//lint:ignore SA1019 programs use it
	if err := ci.apply([]grpc.CallOption{grpc.CallCustomCodec(tagged{"custom"})}, &noConfig, call.DefaultCodec()); err != nil || ci.subtype != "" {
		t.Errorf("%v, subtype %q, grpc-go has none", err, ci.subtype)
	}
}

func TestTheLastOfSeveralCallOptionsCounts(t *testing.T) {
	var ci callInfo
	err := ci.apply([]grpc.CallOption{
		grpc.MaxCallRecvMsgSize(1), grpc.MaxCallRecvMsgSize(2), grpc.WaitForReady(true), grpc.WaitForReady(false),
		grpc.CallContentSubtype("tagged"), grpc.ForceCodec(tagged{"a"}), grpc.ForceCodec(tagged{"b"}),
	}, &noConfig, call.DefaultCodec())
	if err != nil || ci.maxRecv != 2 || ci.waitForReady || ci.subtype != "tagged" || ci.codec.Name() != "b" {
		t.Errorf("%v, %+v", err, ci)
	}
}

func TestWhatIsNotInstalledIsRefused(t *testing.T) {
	for _, option := range []grpc.CallOption{grpc.UseCompressor("nothing"), grpc.CallContentSubtype("nothing")} {
		var ci callInfo
		callservice.WantCode(t, ci.apply([]grpc.CallOption{option}, &noConfig, call.DefaultCodec()), codes.Internal)
	}
	var ci callInfo
	callservice.WantCode(t, ci.apply([]grpc.CallOption{grpc.UseCompressor(encoding.Identity)}, &noConfig, call.DefaultCodec()), codes.OK)
}

func TestAServiceConfigAndCallOptionsTogether(t *testing.T) {
	yes, five := true, jsonSize(5)
	mc := &methodConfig{WaitForReady: &yes, MaxRequestMessageBytes: &five, MaxResponseMessageBytes: &five}
	var ci callInfo
	if err := ci.apply(nil, mc, call.DefaultCodec()); err != nil || !ci.waitForReady || ci.maxSend != 5 || ci.maxRecv != 5 {
		t.Errorf("%v, %+v", err, ci)
	}
	ci = callInfo{}
	err := ci.apply([]grpc.CallOption{grpc.WaitForReady(false), grpc.MaxCallSendMsgSize(9), grpc.MaxCallRecvMsgSize(3)}, mc, call.DefaultCodec())
	if err != nil || ci.waitForReady || ci.maxSend != 5 || ci.maxRecv != 3 {
		t.Errorf("%v, %+v", err, ci)
	}
}

func TestCallOptionsAreToldHowTheCallWent(t *testing.T) {
	no := status.Error(codes.NotFound, "no")
	for name, c := range map[string]struct {
		err     error
		cc      func(*clientSetup)
		subtype string
	}{
		"one shot":         {nil, nil, ""},
		"one shot, failed": {no, nil, ""},
		"streamed": {nil, func(c *clientSetup) {
			c.Sessions = callservice.Always{Session: callservice.Streamed{Session: c.Sessions.(callservice.Always).Session}}
		}, ""},
		"streamed, failed": {no, func(c *clientSetup) {
			c.Sessions = callservice.Always{Session: callservice.Streamed{Session: c.Sessions.(callservice.Always).Session}}
		}, ""},
	} {
		b := start(t, handlers{Unary: func(ctx context.Context, in *msg) (*msg, error) {
			_ = grpc.SetHeader(ctx, metadata.Pairs("h", "1"))
			_ = grpc.SetTrailer(ctx, metadata.Pairs("t", "2"))
			return in, c.err
		}}, nil, c.cc)
		var r callservice.Reports
		_, err := b.call(t.Context(), r.Options()...)
		if status.Code(err) != status.Code(c.err) || len(r.Ends) != 1 || !errors.Is(r.Ends[0], err) {
			t.Errorf("%s: %v, the end was told as %v", name, err, r.Ends)
		}
		if got := callservice.Show(r.Header) + callservice.Show(r.Trailer); got != `map["content-type":["application/grpc"] "h":["1"]]map["t":["2"]]` {
			t.Errorf("%s: header and trailer %s", name, got)
		}
		if r.Peer.Addr == nil || r.Peer.Addr.String() != "bed" || r.Peer.AuthInfo == nil {
			t.Errorf("%s: peer %v", name, r.Peer)
		}
	}
}

func TestOnFinishIsCalledOnceForCallsThatNeverStart(t *testing.T) {
	over, cancel := context.WithCancel(t.Context())
	cancel()
	b := start(t, handlers{}, nil, nil)
	for name, c := range map[string]struct {
		ctx    context.Context
		option grpc.CallOption
	}{
		"refused option": {t.Context(), experimental.AcceptCompressors("nosuch")},
		"no codec":       {t.Context(), grpc.CallContentSubtype("nothing")},
		"bad metadata":   {metadata.AppendToOutgoingContext(t.Context(), "k k", "v"), grpc.EmptyCallOption{}},
		"cancelled":      {over, grpc.EmptyCallOption{}},
		"credentials":    {t.Context(), grpc.PerRPCCredentials(card{err: errors.New("no")})},
	} {
		var r callservice.Reports
		_, err := b.call(c.ctx, append(r.Options(), c.option)...)
		if err == nil || len(r.Ends) != 1 || r.Ends[0] != err {
			t.Errorf("%s: unary: %v, the end was told as %v", name, err, r.Ends)
		}
		r = callservice.Reports{}
		_, err = b.NewStream(c.ctx, streamDesc, streamMethod, append(r.Options(), c.option)...)
		if err == nil || len(r.Ends) != 1 || r.Ends[0] != err {
			t.Errorf("%s: stream: %v, the end was told as %v", name, err, r.Ends)
		}
	}
}
