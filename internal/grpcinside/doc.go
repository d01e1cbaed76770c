// Package grpcinside has all that needs more of grpc-go than its public interfaces promise.
//
// The contract: a new minor version of grpc-go that changes one of these things may cost a faster
// way or a comfort, but no call. Each thing is a [Part], which is checked when the program starts or
// when it is used. Without it calls take another way, which needs only public interfaces. TestCallsGoOnWithoutAPart
// of internal/balance makes calls without each part.
//
// What is relied on, what happens without it, and which test notices (without a name, TestTheInsidesOfGRPC):
//
//   - ConfigSelector: the attributes of a resolver's result, and there the method SelectConfig, its
//     parameter and its result. Otherwise grpc-go makes each call of a target with attributes as a whole,
//     as it does with HTTP filters. TestXDS of interop/targets uses all of it.
//   - ConfigText: the field rawJSONString of a service config. Otherwise a config that another
//     connection has parsed is left to grpc-go, which makes all calls of the target as a whole.
//   - Policies: a policy is built with the credentials of its *grpc.ClientConn. Otherwise grpc-go makes
//     all calls of the target as a whole (TestPoliciesAreWrapped).
//   - Marks: the attributes of an address reach the handshake of its connection. Otherwise likewise, and
//     the retry policies of a service config, except xDS's, do not apply (TestPoliciesAreWrapped).
//   - Frames: what a client's transport writes before its first stream is SETTINGS, PING and
//     WINDOW_UPDATE. Otherwise a grpc.Server takes the connection then, not at its first stream
//     (TestASessionConnNeedsNoServer).
//   - States: grpc.Dial builds a balancer at once and calls it without locks, and ResetConnectBackoff
//     connects SubConns. Otherwise GRPC and DialOptions show no state, and closing GRPC's result leaves the
//     ClientConn open (the tests of GRPC in package test).
//   - ContextKeys: metadata, peer and stream are looked up under one key each. Otherwise a handler's
//     context makes all three for each lookup.
//   - RawMetadata: the variable internal.FromOutgoingContextRaw. Otherwise upper-case keys are sent in
//     lower case.
//   - Compressors: the variable grpcutil.RegisteredCompressorNames. Otherwise clients and servers
//     advertise gzip alone.
//   - Accepted: the list in the option AcceptCompressors. Otherwise the replies of such calls are not
//     compressed.
//   - Interceptors: the fields unaryInt and streamInt in a *grpc.Server's options. Otherwise there is a
//     warning, and the interceptors of GRPCServerOptions apply to ordinary gRPC clients only.
//   - ProtoCodec: the package of the codec for protobuf. Otherwise messages are copied through bytes.
//
// One thing costs calls: package authz refuses them if it finds no connection under the context key of
// package transport (the authz cases of interop). To let them pass would cost more.
//
// Two things need no part. The key under which grpc.PreparedMsg looks for its stream is found or not:
// without it, some prepared messages are encoded once more. And a sessionConn has a method ReadOnReady,
// which grpc-go's transport calls or not.
package grpcinside

import "sync/atomic"

// A Part is something inside grpc-go. Its methods are safe for concurrent use.
type Part struct{ missing atomic.Bool }

// Found reports whether this version of grpc-go has the part, as far as can be told in advance.
func (p *Part) Found() bool { return !p.missing.Load() }

// Hide makes the part look as if grpc-go did not have it, until show is called. Tests call it.
func (p *Part) Hide() (show func()) {
	before := p.missing.Swap(true)
	return func() { p.missing.Store(before) }
}

// check records whether the part was found, and returns found.
func (p *Part) check(found bool) bool {
	if !found {
		p.missing.Store(true)
	}
	return found
}

// The parts, which the package comment describes.
var ConfigSelector, ConfigText, Policies, Marks, Frames, States, ContextKeys, RawMetadata, Compressors, Accepted, Interceptors, ProtoCodec Part

// Parts maps the names of the parts to them.
var Parts = map[string]*Part{
	"ConfigSelector": &ConfigSelector, "ConfigText": &ConfigText, "Policies": &Policies, "Marks": &Marks,
	"Frames": &Frames, "States": &States, "ContextKeys": &ContextKeys, "RawMetadata": &RawMetadata,
	"Compressors": &Compressors, "Accepted": &Accepted, "Interceptors": &Interceptors, "ProtoCodec": &ProtoCodec,
}
