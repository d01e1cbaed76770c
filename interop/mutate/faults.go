package main

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// A Fault is a mistake to make in the engine: replace Old, which must occur exactly
// once in File, with New. At least one case of each item must turn red. A fault that
// gRPC's semantics do not show has no items, but a test that must fail.
type Fault struct {
	Name  string
	File  string // relative to the repository's root
	Old   string
	New   string
	Items []int
	Env   string // the environment to run the cases in; inproc if empty

	Test string // instead of Items: a test of File's package, with the subtest if only one must fail
}

// env returns the environment of f's cases, or the directory of its test.
func (f *Fault) env() string {
	switch {
	case f.Test != "":
		return path.Dir(f.File)
	case f.Env == "":
		return "inproc"
	}
	return f.Env
}

// apply returns the text of f's file below root, without and with the fault.
func (f *Fault) apply(root string) (sound, faulty string, err error) {
	b, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(f.File)))
	if err != nil {
		return "", "", err
	}
	sound = string(b)
	if n := strings.Count(sound, f.Old); n != 1 {
		return "", "", fmt.Errorf("%s: %q stands there %d times, want once; say in faults.go what the code says now", f.File, f.Old, n)
	}
	return sound, strings.Replace(sound, f.Old, f.New, 1), nil
}

const (
	aAttempt       = "internal/call/attempt.go"
	aReplace       = "internal/call/replace.go"
	aReplay        = "internal/call/replay.go"
	aRetry         = "internal/call/retry.go"
	aStats         = "internal/call/stats.go"
	aClient        = "internal/call/client.go"
	aClientStream  = "internal/call/clientstream.go"
	aCreds         = "internal/call/creds.go"
	aMetadata      = "internal/call/metadata.go"
	aServer        = "internal/call/server.go"
	aServerCall    = "internal/call/servercall.go"
	aServerConn    = "internal/call/serverconn.go"
	aServerContext = "internal/call/servercontext.go"
	aServerStream  = "internal/call/serverstream.go"
	aCarried       = "internal/call/carried.go"
	aServerUnary   = "internal/call/serverunary.go"
	aStatus        = "internal/call/status.go"
	aCallInfo      = "internal/call/callinfo.go"
	aHeader        = "internal/call/header.go"
	aClientHeader  = "internal/call/clientheader.go"
	aFullHeader    = "internal/call/fullheader.go"
	aEncodeOnce    = "internal/call/encodeonce.go"
	aPeer          = "peer.go"
	aProgram       = "internal/codec/program.go"
	aProto         = "internal/codec/proto.go"
	aMessage       = "internal/link/message.go"
	aQueue         = "internal/transport/inproc/queue.go"
	aFetches       = "internal/transport/shm/fetches.go"
	anInbox        = "internal/encoded/inbox.go"
	aReplies       = "internal/encoded/replies.go"
	aMuxCall       = "internal/mux/receive.go"
	aMuxCredit     = "internal/mux/control.go"
	aMuxReading    = "internal/mux/reading.go"
	aMuxStream     = "internal/mux/stream.go"
	aMuxWrite      = "internal/mux/writing.go"
	aWaitContext   = "internal/wait/context.go"
	aWorkers       = "internal/call/workers.go"
	aLinkCall      = "internal/link/call.go"
	aMuxInput      = "internal/mux/input.go"
	aMuxPlain      = "internal/mux/plain.go"
	aRing          = "internal/transport/shm/ring.go"
	aDriven        = "loop/driven.go"
	aHandlers      = "loop/handlers.go"
)

// Faults has at least one fault for most of the semantics in the items, in the
// order of the items, and then those for the protocol's test vectors.
var Faults = []Fault{
	// Start of a call.
	{
		Name: "a call starts although its context is done",
		File: aClient,
		Old:  "if err := wait.Err(ci.ctx); err != nil {",
		New:  "if err := wait.Err(ci.ctx); false {", Items: []int{1},
	},
	{
		Name: "a context's Err is used before its Done channel is closed",
		File: aWaitContext,
		Old:  "if !isClosed(ctx.Done()) {",
		New:  "if false {", Items: []int{1, 24},
	},
	{
		Name: "a context's deadline is used although ok is false",
		File: aHeader,
		Old:  "if deadline, ok := a.ctx.Deadline(); ok {",
		New:  "if deadline, ok := a.ctx.Deadline(); ok || !deadline.IsZero() {", Items: []int{1},
	},
	{
		Name: "an expired deadline is not noticed before a call",
		File: aHeader,
		Old:  "if time.Until(deadline) <= 0 {",
		New:  "if time.Until(deadline) < -1<<62 {", Items: []int{1},
	},
	{
		Name: "a context's custom error is reported as a cancellation",
		File: aStatus,
		Old:  "return status.Error(codes.Unknown, err.Error())",
		New:  "return contextStatus(err)", Items: []int{1},
	},
	{
		Name: "a context's error is returned bare",
		File: aStatus,
		Old:  "return status.FromContextError(contextError(err)).Err()",
		New:  "return contextError(err)", Items: []int{1, 22},
	},
	{
		Name: "the error of a message that cannot be encoded is no status",
		File: aStatus,
		Old:  `return status.Error(codes.Internal, fmt.Sprintf("grpc: error while marshaling: %v", e.Err))`,
		New:  "_ = fmt.Sprint\n\treturn e", Items: []int{2},
	},
	{
		Name: "metadata is not validated",
		File: aMetadata,
		Old:  "func validatePair(key string, vals ...string) error {",
		New:  "func validatePair(key string, vals ...string) error {\n\treturn nil", Items: []int{3, 7},
	},
	{
		Name: "reserved metadata keys are sent",
		File: aMetadata,
		Old:  `"grpc-message", "grpc-status", "grpc-timeout":`,
		New:  `"grpc-message":`, Items: []int{4},
	},
	{
		Name: "no :authority in incoming metadata",
		File: aServerCall,
		Old:  `md[":authority"] = []string{c.open.Authority}`,
		New:  "", Items: []int{5},
	},
	{
		Name: "a handler's context has the values of its caller's context",
		File: aServerCall,
		Old:  "return c.conn.ctx.Value(key)",
		New:  "if c.open.Caller != nil {\n\t\treturn c.open.Caller.Value(key)\n\t}\n\treturn c.conn.ctx.Value(key)", Items: []int{6},
	},
	{
		Name: "the audience of credentials includes the method's name",
		File: aCreds,
		Old:  "method = method[:slash]",
		New:  "_ = slash", Items: []int{7},
	},
	{
		Name: "the audience of credentials includes the port of https",
		File: aCreds,
		Old:  `host := strings.TrimSuffix(authority, ":443")`,
		New:  "host := authority", Items: []int{7},
	},
	{
		Name: "the audience of credentials ignores the call's own authority",
		File: aHeader,
		Old:  "c.authMetadata(a, ci, o.Authority)",
		New:  "c.authMetadata(a, ci, c.cfg.Authority)", Items: []int{7},
	},
	{
		Name: "method names are split at the first slash",
		File: "internal/call/forward.go",
		Old:  "slash := strings.LastIndexByte(name, '/')",
		New:  "slash := strings.IndexByte(name, '/')", Items: []int{8},
	},
	{
		Name: "control characters reach handlers",
		File: aServerCall,
		Old:  "	if what == \"\" {",
		New:  "	if what == \"\" || true {", Items: []int{5, 8},
	},
	{
		Name: "a stream with control characters in its header is not opened",
		File: aServerConn,
		Old:  "s.Abort(err) // instead",
		New:  "return err // and", Items: []int{5, 8},
	},
	{
		Name: "NewStream does not reach unary methods",
		File: aServerConn,
		Old:  "r := newCarried(s, c, c.server.lookup(o.Method), o)",
		New:  "m := c.server.lookup(o.Method)\n\tif m.unary != nil {\n\t\tm = c.server.lookup(\"\")\n\t}\n\tr := newCarried(s, c, m, o)", Items: []int{9},
	},

	// Messages.
	{
		Name: "a streaming handler waits for a message",
		File: aServerStream,
		Old:  "	m, server := c.method, c.conn.server\n",
		New:  "	m, server := c.method, c.conn.server\n\t_ = s.carrier.Recv(&s.recvFrame)\n", Items: []int{10},
	},
	{
		Name: "SendMsg returns the status itself",
		File: aClientStream,
		Old:  "return io.EOF\n\t}\n\treturn nil\n}\n\n// checkContext",
		New:  "return linkStatus(err)\n\t}\n\treturn nil\n}\n\n// checkContext", Items: []int{11},
	},
	{
		Name: "SendMsg after CloseSend is Unknown",
		File: aClientStream,
		Old:  `return status.Error(codes.Internal, "SendMsg called after CloseSend")`,
		New:  `return status.Error(codes.Unknown, "SendMsg called after CloseSend")`, Items: []int{12},
	},
	{
		Name: "CloseSend returns the stream's error",
		File: aClientStream,
		Old:  "_ = s.transmit(",
		New:  "return s.transmit(", Items: []int{13},
	},
	{
		Name: "SendMsg(nil) fails",
		File: aProto,
		Old:  "return 0, copyEmpty(dst), nil",
		New:  "return 0, false, errCyclic", Items: []int{14},
	},
	{
		Name: "a single reply does not wait for the end",
		File: aClientStream,
		Old:  "if err == nil && !s.info.desc.ServerStreams {",
		New:  "if false {", Items: []int{16, 17, 18},
	},
	{
		Name: "a missing reply is taken for the end",
		File: aClientStream,
		Old:  "if !s.info.desc.ServerStreams && !s.received {",
		New:  "if false {", Items: []int{18},
	},
	{
		Name: "a missing request is taken for the end",
		File: aCarried,
		Old:  "if err == io.EOF && !c.method.clientStreams() && !r.recvOnce {",
		New:  "if false {", Items: []int{19},
	},
	{
		Name: "io.EOF is returned once",
		File: aClientStream,
		Old:  "func (s *clientStream) failRecv(err error) error {\n\ts.recvErr = err\n",
		New:  "func (s *clientStream) failRecv(err error) error {\n\ts.recvErr = linkStatus(err)\n", Items: []int{20},
	},
	{
		Name: "a cancellation overtakes messages",
		File: aQueue,
		Old:  "if len(q.items) > 0 {",
		New:  "if len(q.items) > 0 && q.recvErr == nil {", Items: []int{21},
	},
	{
		Name: "a deadline is reported as a cancellation",
		File: aStatus,
		Old:  "return context.DeadlineExceeded",
		New:  "return context.Canceled", Items: []int{1, 22, 24},
	},
	{
		Name: "a context's custom error is reported as an unreachable server",
		File: aStatus,
		Old:  "status.Errorf(codes.Internal, \"Unexpected error from context packet: %v\", own.Err)",
		New:  "status.Error(codes.Unavailable, own.Error())", Items: []int{24},
	},
	{
		Name: "a handler's context without a deadline exceeds its deadline",
		File: aServerCall,
		Old:  "if c.open.Deadline.IsZero() {\n\t\terr",
		New:  "if false {\n\t\terr", Items: []int{24},
	},
	{
		Name: "a deadline of a context without a Done channel is not enforced",
		File: aClient,
		Old:  "if ctx.Done() != nil {\n\t\treturn ctx, nil",
		New:  "if true {\n\t\treturn ctx, nil", Items: []int{24},
	},
	{
		Name: "a caller waits for the server's codec",
		File: aLinkCall,
		Old:  "return m.freeze() // runs no user code: the caller has encoded what needs it",
		New:  "return nil, m.DecodeInto(to)", Items: []int{24},
	},
	{
		Name: "the outcome of an abandoned call is the handler's error",
		File: aLinkCall,
		Old:  "if err == nil && c.Status != nil {",
		New:  "if false {", Items: []int{24},
		Env: "inproc-inline",
	},
	{
		Name: "the handler's context outlives its return",
		File: aServerUnary,
		Old:  "after = c.endContext(context.Canceled)",
		New:  "_ = after", Items: []int{23},
	},
	{
		Name: "the deadline does not reach the handler",
		File: aServerContext,
		Old:  "return c.open.Deadline, !c.open.Deadline.IsZero()",
		New:  "return time.Time{}, false", Items: []int{24},
	},
	{
		Name: "an inline handler's context ends with the wrong error",
		File: aServerContext,
		Old:  "func() { c.callerLeft(wait.DoneErr(caller)) }",
		New:  "func() { c.cancel(context.DeadlineExceeded) }", Items: []int{24},
		Env: "inproc-inline",
	},
	{
		Name: "an inline handler that polls its context does not see its caller's end",
		File: aServerContext,
		Old:  "if err == nil {\n\t\t\treturn nil",
		New:  "if err == nil || true {\n\t\t\treturn nil", Items: []int{24},
		Env: "inproc-inline",
	},
	{
		Name: "a stream's message is queued without being copied",
		File: aMessage,
		Old:  "Capture(into *Message) error {",
		New:  "Capture(into *Message) error {\n\tif m.value != nil {\n\t\t*into = *m\n\t\treturn nil\n\t}", Items: []int{25, 26},
	},
	{
		Name: "a copy shares bytes",
		File: aProgram,
		Old:  "len(v) > 0 {\n\t\t\t\t*d.bytes() = append([]byte{}, v...)",
		New:  "len(v) > 0 {\n\t\t\t\t*d.bytes() = v", Items: []int{26},
	},

	// Status and metadata.
	{
		Name: "a handler's context error is Unknown",
		File: aStatus,
		Old:  "st = status.FromContextError(err)",
		New:  "st = status.New(codes.Unknown, err.Error())", Items: []int{27},
	},
	{
		Name: "an error whose code is OK is sent as a failure",
		File: aStatus,
		Old:  "if st == nil || st.Code() == codes.OK {",
		New:  "if st == nil {", Items: []int{28},
	},
	{
		Name: "status messages keep invalid UTF-8",
		File: aStatus,
		Old:  "!utf8.ValidString(msg)",
		New:  "!utf8.ValidString(msg[:0])", Items: []int{29},
	},
	{
		Name: "a header may be sent twice",
		File: aServerCall,
		Old:  "if c.headerSent || c.finished {\n\t\tc.mu.Unlock()",
		New:  "if c.finished {\n\t\tc.mu.Unlock()", Items: []int{30},
	},
	{
		Name: "a call without a header has an empty one",
		File: aFullHeader,
		Old:  "if md == nil {",
		New:  "if false {", Items: []int{31},
	},
	{
		Name: "unary calls do not fill call options",
		File: aClient,
		Old:  "ci.fillOptions(a.peer, u.Header, u.Trailer)",
		New:  "", Items: []int{32},
	},
	{
		Name: "OnFinish is called twice",
		File: aClientStream,
		Old:  "if s.finished {\n\t\ts.mu.Unlock()",
		New:  "if false {\n\t\ts.mu.Unlock()", Items: []int{33},
	},
	{
		Name: "OnFinish is not called for calls that never began",
		File: aClient,
		Old:  "ci.opts, ci.reports = opts, true",
		New:  "ci.opts = opts", Items: []int{33},
	},
	{
		Name: "messages over the limit are received",
		File: aMessage,
		Old:  "if m.bound <= to.Limit {",
		New:  "if true {", Items: []int{34},
	},
	{
		Name: "messages over the limit are sent",
		File: aEncodeOnce,
		Old:  "if limit >= noLimit {",
		New:  "if true {", Items: []int{34},
	},
	{
		Name: "a send limit counts what is not compressed yet",
		File: aEncodeOnce,
		Old:  `compressor != "" && (n > limit`,
		New:  `compressor == "none" && (n > limit`, Items: []int{35},
		Env: "tcp",
	},
	{
		Name: "a send limit in process counts what is not compressed",
		File: aEncodeOnce,
		Old:  "(n > limit || !peer.Local)",
		New:  "!peer.Local", Items: []int{35},
	},
	{
		Name: "a receive limit in process says nothing of compression",
		File: aMessage,
		Old:  `large && Compressor(to.Compressor) != ""`,
		New:  "large && false", Items: []int{35},
	},
	{
		Name: "the server ignores the content-subtype",
		File: aServer,
		Old:  `if subtype == "" || len(subtype) > maxName {`,
		New:  "if true {", Items: []int{35},
	},
	{
		Name: "an unknown content-subtype is no error",
		File: aCallInfo,
		Old:  "if !ok {\n\t\t\treturn status.Errorf(codes.Internal, \"no codec",
		New:  "if c = byDefault; !ok && false {\n\t\t\treturn status.Errorf(codes.Internal, \"no codec", Items: []int{35},
	},
	{
		Name: "strings are not checked for UTF-8",
		File: aProgram,
		Old:  "!utf8.ValidString(v) {",
		New:  "!utf8.ValidString(v[:0]) {", Items: []int{36},
	},
	{
		Name: "stats see the reply before its header",
		File: aServerUnary,
		Old:  "c.stats.header(header)\n\t\tc.stats.sent(v, &msg)",
		New:  "c.stats.sent(v, &msg)\n\t\tc.stats.header(header)", Items: []int{38},
	},
	{
		Name: "Close does not abort streams whose end was not received",
		File: aClient,
		Old:  "s.abortCall(reason)",
		New:  "_, _ = s, reason", Items: []int{40},
	},
	{
		Name: "an end without a header does not end the call",
		File: aClientHeader,
		Old:  "s.finish(errorOf(s.end.Status))",
		New:  "_ = s", Items: []int{40},
	},
	{
		Name: "a cancellation does not abort abandoned streams",
		File: aAttempt,
		Old:  "s.abortCall(link.ContextEnd(wait.DoneErr(a.ctx)))",
		New:  "_ = s", Items: []int{40},
	},
	{
		Name: "GracefulStop does not wait",
		File: aServer,
		Old:  "<-c.idle\n\t\t_ =",
		New:  "_ =", Items: []int{41},
	},
	{
		Name: "what has arrived over shared memory is lost with its connection",
		File: aFetches,
		Old:  "m.lost = f.memory.reserveKept(m.size)",
		New:  "m.lost = net.ErrClosed", Items: []int{41},
		Env: "shm",
	},
	{
		Name: "grpc.SetHeader finds no call",
		File: aServerCall,
		Old:  "case streamKey:",
		New:  "case nil:", Items: []int{42},
	},

	// Retries.
	{
		Name: "a header does not commit a unary call",
		File: aReplace,
		Old:  "answered := u.Header != nil || u.Replied",
		New:  "answered := u.Replied", Items: []int{43},
	},
	{
		Name: "nothing commits a stream",
		File: aReplay,
		Old:  "\ts.committed, s.replayBuffer, s.replayBufferRoom = true, nil, [1]step{}\n}",
		New:  "\t_ = s.replayBufferRoom\n}", Items: []int{43},
	},
	{
		Name: "the retry throttler never throttles",
		File: aRetry,
		Old:  "return rt.tokens <= rt.thresh",
		New:  "return false", Items: []int{43},
	},
	{
		Name: "the retry throttler does not count successes",
		File: aCallInfo,
		Old:  "ci.retry.throttler.successfulRPC()",
		New:  "_ = ci", Items: []int{43},
	},
	{
		Name: "a server's retry pushback is ignored",
		File: aRetry,
		Old:  "switch values := trailer[pushbackKey]; len(values) {",
		New:  "switch values := trailer[\"\"]; len(values) {", Items: []int{43},
	},
	{
		Name: "handlers do not see the number of previous attempts",
		File: aHeader,
		Old:  "o.Metadata = ci.retry.addPreviousAttempts(o.Metadata)",
		New:  "_ = ci", Items: []int{43},
		Env: "unix",
	},
	{
		Name: "a unary call is retried although its request exceeds the replay buffer",
		File: aReplay,
		Old:  "return err == nil && n+link.MessageOverhead <= limit",
		New:  "return err == nil || n < limit", Items: []int{43},
	},
	{
		Name: "a stream is retried although it sent more than the replay buffer holds",
		File: aReplay,
		Old:  "s.replayBufferSize > s.info.maxReplay {",
		New:  "false {", Items: []int{43},
		Env: "tcp",
	},
	{
		Name: "a sender does not notice that its attempt has failed",
		File: aReplace,
		Old:  "case s.sendAttempt != nil, !s.info.retry.hasPolicy(), unfit(err):",
		New:  "case true, unfit(err):", Items: []int{43},
	},
	{
		Name: "the policy's attempts are transparent to stats handlers",
		File: aAttempt,
		Old:  "IsTransparentRetryAttempt: a.kind == transparentRetry,",
		New:  "IsTransparentRetryAttempt: a.kind != firstAttempt,", Items: []int{43},
	},

	// Sockets.
	{
		Name: "two replies to a unary call over a socket are accepted",
		File: aReplies,
		Old:  "case wrong == nil:",
		New:  "case wrong == nil, wrong == link.ErrReplies:", Items: []int{18},
		Env: "unix",
	},
	{
		Name: "the end of sending gets lost",
		File: anInbox,
		Old:  "it.HalfClose, it.End = rc.HalfClose, rc.End",
		New:  "it.End = rc.End", Items: []int{10},
		Env: "unix",
	},
	{
		Name: "whether an end is late depends on when it is received",
		File: aClientStream,
		Old:  "if f.End != nil && f.End.Late {",
		New:  "if deadline, ok := s.info.ctx.Deadline(); f.End != nil && ok && link.Passed(deadline) {", Items: []int{21},
		Env: "tcp",
	},
	{
		Name: "an interrupted reader leaves its read deadline to the next reader",
		File: aMuxReading,
		Old:  "if s.roles.Unpark() {\n\t\t\ts.resetReadDeadline()",
		New:  "if s.roles.Unpark() {", Items: []int{24},
		Env: "unix",
	},
	{
		Name: "an aborted call is not reset at the peer",
		File: aMuxStream,
		Old:  "if tell && known {",
		New:  "if _ = known; false {", Items: []int{24},
		Env: "tcp",
	},
	{
		Name: "the deadline is not sent to the server",
		File: aMuxWrite,
		Old:  "step.Timeout = max(time.Until(d), 1)",
		New:  "_ = time.Until", Items: []int{24},
		Env: "tcp",
	},
	{
		Name: "a sender is not woken when its stream has room",
		File: aMuxWrite,
		Old:  "wait.Unpark(st.session.wake(&st.sender))",
		New:  "_ = wait.Unpark", Items: []int{44},
		Env: "tcp",
	},
	{
		Name: "no credit is given for a message that is larger than the window",
		File: aMuxCredit,
		Old:  "grant = st.in.flow.ForMessage(",
		New:  "_ = st.in.flow.ForMessage(", Items: []int{34},
		Env: "tcp",
	},
	{
		Name: "a unary call over a socket has no trailer",
		File: aReplies,
		Old:  "c.End = *it.End",
		New:  "c.Status = it.End.Status", Items: []int{32},
		Env: "tls",
	},

	// Loops. A fault that blocks a loop or loses a call shows as a call that hangs.
	{
		Name: "a handler's context does not know its loop",
		File: aServerCall,
		Old:  "if c.method.loop == nil {\n\t\t\treturn nil",
		New:  "if true {\n\t\t\treturn nil", Items: []int{21},
		Env: "inproc-loop",
	},
	{
		Name: "a handler's stream blocks the loop",
		File: aWorkers,
		Old:  "c.carried.carrier.SetWaiter(c.method.loop)",
		New:  "", Items: []int{35},
		Env: "inproc-pinned",
	},
	{
		Name: "a task blocks its goroutine when it waits",
		File: aHandlers,
		Old:  "if t := (*Loop)(h).caller(); t != nil {\n\t\treturn t\n\t}",
		New:  "", Items: []int{6},
		Env: "inproc-hosted",
	},
	{
		Name: "a task's call in process blocks the loop",
		File: aLinkCall,
		Old:  "w = wait.TaskOr(c.Caller, w)",
		New:  "_ = wait.TaskOr", Items: []int{6},
		Env: "inproc-loop",
	},
	{
		Name: "a task's call over a socket blocks the loop",
		File: aMuxCall,
		Old:  "st.waiter = wait.TaskOf(ctx)",
		New:  "_ = wait.TaskOf", Items: []int{6},
		Env: "tcp-hosted",
	},
	{
		Name: "a unary handler does not see that the caller which runs it has ended",
		File: aServerConn,
		Old:  "sc.inline = caller != nil && (inline || m.runsOnCaller)",
		New:  "sc.inline = caller != nil && inline", Items: []int{24},
		Env: "inproc-coroutines",
	},
	{
		Name: "a stream's handler does not see that the caller which runs it has ended",
		File: aServerConn,
		Old:  "sc.inline = o.Caller != nil && sc.method.runsOnCaller",
		New:  "sc.inline = false", Items: []int{24},
		Env: "inproc-coroutines",
	},
	{
		Name: "a socket's reader runs tasks",
		File: aWorkers,
		Old:  "c.method.loop.Start(c.conn.peer.Local, (*loopJob)(c))",
		New:  "c.method.loop.Start(true, (*loopJob)(c))", Items: []int{24},
		Env: "tcp-coroutines",
	},
	{
		Name: "a goroutine that wakes a task runs it",
		File: aDriven,
		Old:  "if wake && handoff && d.drivenByCallers {",
		New:  "if wake && d.drivenByCallers {", Items: []int{24},
		Env: "tcp-coroutines",
	},
	{
		Name: "a call that ran on a loop never counts as finished",
		File: aWorkers,
		Old:  "\tc.run()\n\tc.conn.server.workers.finished(c)\n}\n\n// Drop",
		New:  "\tc.run()\n}\n\n// Drop", Items: []int{41},
		Env: "inproc-loop",
	},
	{
		Name: "a *grpc.ClientConn does not learn of its connection's state",
		File: "internal/connector/connector.go",
		Old:  "\t\to.see(s)\n",
		New:  "\t\t_ = o\n", Items: []int{41, 42},
	},
	{
		Name: "closing a *grpc.ClientConn leaves its connection open",
		File: "grpcconn.go",
		Old:  "_ = m.source.conn.shut()",
		New:  "_ = m.source.conn", Items: []int{41},
	},
	{
		Name: "a forwarded call loses its trailer",
		File: "forward/response.go",
		Old:  "\tw.stream.SetTrailer(trailer)\n",
		New:  "_ = trailer\n", Items: []int{30},
		Env: "inproc-forward",
	},
	{
		Name: "calls to the peer have none of PeerConnOptions",
		File: aPeer,
		Old:  "o := options.NewDial(s.opts.Peer)",
		New:  "o := options.NewDial(nil)", Items: []int{7, 33, 38},
		Env: "inproc-peer",
	},
	{
		Name: "calls to the peer outlive what the peer takes",
		File: aPeer,
		Old:  "if link.IsClosed(d.session.Done()) {",
		New:  "if false {", Items: []int{41},
		Env: "tcp-peer",
	},
	{
		Name: "a server's calls have the numbers of a client's",
		File: aMuxWrite,
		Old:  "s.lastOwn = 2",
		New:  "s.lastOwn = 1", Items: []int{13, 30},
		Env: "unix-peer",
	},
	{
		Name: "in process a server that calls its client calls itself",
		File: "internal/transport/inproc/session.go",
		Old:  "s.server = end{session: s, out: &s.down, in: &s.up,",
		New:  "s.server = end{session: s, out: &s.up, in: &s.up,", Items: []int{13, 30},
		Env: "inproc-peer",
	},

	// The protocol's test vectors. The tests that read them must fail.
	{
		Name: "a call that was reset counts as open for its callee",
		File: aMuxStream,
		Old:  "if !st.caller {\n\t\t\ts.calls--",
		New:  "if !st.caller && st.reason == nil {\n\t\t\ts.calls--", Test: "TestSessionsTakePartInTheConversations/reset,_the_server",
	},
	{
		Name: "a call that was reset counts as open for its caller",
		File: aMuxStream,
		Old:  "\t\ts.releaseCall()\n\t}\n\tif s.live.first == nil {",
		New:  "\t\tif st.reason == nil {\n\t\t\ts.releaseCall()\n\t\t}\n\t}\n\tif s.live.first == nil {", Test: "TestSessionsTakePartInTheConversations/reset,_the_client",
	},
	{
		Name: "a caller refuses a message without a header before it",
		File: aMuxPlain,
		Old:  "if !st.deliverPlain(message) {",
		New:  "if st.caller && !st.answered {\n\t\t\ts.mu.Unlock()\n\t\t\treturn done, protocolError(\"no header\")\n\t\t}\n\t\tif !st.deliverPlain(message) {", Test: "TestAReplyWithoutAHeader",
	},
	{
		Name: "a caller refuses a message and the end without a header",
		File: aMuxInput,
		Old:  "s.answered, st.answered = true, true",
		New:  "if st.caller && !st.answered && rc.Begins && rc.Header == nil {\n\t\t\t\treturn nil, false, protocolError(\"no header\")\n\t\t\t}\n\t\t\ts.answered, st.answered = true, true", Test: "TestAReplyWithoutAHeader",
	},
	{
		Name: "a wait for room has the number of the one before it",
		File: aRing,
		Old:  "func (s *sender) stopWaiting() {\n\ts.waits++",
		New:  "func (s *sender) stopWaiting() {\n\ts.waits--", Test: "TestGoldenWords",
	},
	{
		Name: "a bell is rung for the first wait for room only",
		File: aRing,
		Old:  "bell = mustRing(r.wants, &r.rung)",
		New:  "bell = r.rung == 0 && mustRing(r.wants, &r.rung)", Test: "TestGoldenWords",
	},
	{
		Name: "a bell is rung twice for a wait for room",
		File: aRing,
		Old:  "bell = mustRing(r.wants, &r.rung)",
		New:  "bell = r.wants.Load()&1 == 1", Test: "TestGoldenWords",
	},
}
