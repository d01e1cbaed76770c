package interop

import "strconv"

// An Item is one promise of gRPC that nearcall keeps.
type Item struct {
	Number int
	Dagger bool // known to differ from grpc-go in other in-process channels
	Title  string
}

// Name returns the item's number, with its dagger.
func (i Item) Name() string {
	n := strconv.Itoa(i.Number)
	if i.Number < 10 {
		n = "0" + n
	}
	if i.Dagger {
		n += "†"
	}
	return n
}

// Items lists all promises, in order. TestItems fails if one has no case.
var Items = []Item{
	// Start of a call.
	{1, true, "a call whose context is done never reaches the handler"},
	{2, false, "every error of a call is a status error"},
	{3, true, "illegal metadata is refused with Internal, not repaired"},
	{4, false, "reserved metadata keys from the user are dropped"},
	{5, true, "a handler always finds incoming metadata, with the call's own keys"},
	{6, false, "incoming metadata and context values stop at the hop"},
	{7, true, "per-RPC credentials: audience, RequestInfo, transport security, errors"},
	{8, true, "malformed and unknown method names are Unimplemented"},
	{9, true, "one namespace of methods: NewStream reaches unary methods"},
	{10, false, "a streaming handler starts before the first message"},
	// Messages.
	{11, false, "SendMsg after the server ended is io.EOF, the status comes from RecvMsg"},
	{12, false, "SendMsg after CloseSend is Internal"},
	{13, false, "CloseSend may be repeated"},
	{14, true, "SendMsg(nil) sends an empty message"},
	{15, true, "a typed nil reply is OK and empty"},
	{16, false, "a single reply is delivered when the handler has returned"},
	{17, true, "an error returned after SendAndClose wins over the reply"},
	{18, true, "no reply, or two, where one is due: Internal"},
	{19, false, "no request, or two, where one is due: Internal"},
	{20, false, "RecvMsg after the end keeps returning io.EOF"},
	{21, false, "messages that had arrived drain before a cancellation shows"},
	{22, true, "server SendMsg after cancellation fails with the context's code"},
	{23, false, "the handler's context is cancelled when it returns"},
	{24, false, "deadline and cancellation reach the handler, with context's own errors"},
	{25, true, "requests are captured before Invoke returns, replies not written after"},
	{26, false, "both sides may change their messages afterwards"},
	// Status and metadata.
	{27, true, "handler errors become codes; no error's identity crosses"},
	{28, false, "an error whose status is OK"},
	{29, false, "status details survive unaliased; invalid UTF-8 in messages"},
	{30, false, "SetHeader, SendHeader: empty, twice, and together with errors"},
	{31, false, "Header() is nil, nil where the call ended without headers"},
	{32, false, "Header, Trailer and Peer options are filled before the end shows"},
	{33, false, "OnFinish fires exactly once"},
	{34, true, "size limits, in process too"},
	{35, true, "the two sides may use different Go types: the codec decides"},
	{36, true, "what marshalling refuses is refused in process too"},
	{37, false, "what a foreign stream cannot offer returns a clear error"},
	{38, true, "stats events: order and fields"},
	{39, false, "handler panics are not swallowed"},
	{40, false, "four ways to free an abandoned stream"},
	{41, false, "GracefulStop, Stop and Close"},
	{42, false, "grpc.Method, SetHeader, peer and friends work in handlers and interceptors"},
	// Retries.
	{43, false, "a retryPolicy's retries: which calls, when, and what everybody sees of them"},
	// Flow control.
	{44, false, "a sender goes on when its receiver has received, whatever the messages' sizes"},
}
