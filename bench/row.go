package main

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
)

// A Row is a kind of call with its parameters. Rows differ in data, not in code.
type Row struct {
	Name        string // also names the benchmark, so do not change it
	Kind        Kind
	Size        int  // of a payload or record, in bytes
	Messages    int  // messages per server stream or client stream
	Cancellable bool // calls have a context that can be cancelled, instead of Background
	Callers     int  // goroutines that call concurrently; 0 means 1
	Chosen      bool // it is in the short picture

	// Pause is how long a caller sleeps before each operation. The operation's time does
	// not include it.
	Pause time.Duration
}

// inProcessRows are the rows of the table of one process.
var inProcessRows = []Row{
	{Name: "unary-32B", Kind: Unary, Size: 32, Chosen: true},
	{Name: "unary-32B-cancellable", Kind: Unary, Size: 32, Cancellable: true, Chosen: true},
	{Name: "unary-64B", Kind: Unary, Size: 64},
	{Name: "unary-1KB", Kind: Unary, Size: 1 << 10},
	{Name: "unary-10KB", Kind: Unary, Size: 10 << 10},
	{Name: "unary-100KB", Kind: Unary, Size: 100 << 10, Chosen: true},
	{Name: "unary-1MB", Kind: Unary, Size: 1 << 20},
	{Name: "unary-record", Kind: Record, Size: proto.Size(record())},
	{Name: "server-stream-100x32B", Kind: ServerStream, Size: 32, Messages: 100, Cancellable: true, Chosen: true},
	{Name: "client-stream-100x32B", Kind: ClientStream, Size: 32, Messages: 100, Cancellable: true},
	{Name: "bidi-echo-32B", Kind: BidiEcho, Size: 32, Cancellable: true, Chosen: true},
	{Name: "unary-32B-10-callers", Kind: Unary, Size: 32, Cancellable: true, Callers: 10},
	{Name: "unary-32B-50-callers", Kind: Unary, Size: 32, Cancellable: true, Callers: 50},
	{Name: "unary-32B-100-callers", Kind: Unary, Size: 32, Cancellable: true, Callers: 100},
}

// loopRows are the rows of the table on an event loop: those in which a loop can make a
// difference. Larger messages and the record differ only in what is copied.
var loopRows = []Row{
	{Name: "unary-32B", Kind: Unary, Size: 32, Chosen: true},
	{Name: "unary-32B-cancellable", Kind: Unary, Size: 32, Cancellable: true, Chosen: true},
	{Name: "unary-1KB", Kind: Unary, Size: 1 << 10},
	{Name: "server-stream-100x32B", Kind: ServerStream, Size: 32, Messages: 100, Cancellable: true, Chosen: true},
	{Name: "client-stream-100x32B", Kind: ClientStream, Size: 32, Messages: 100, Cancellable: true},
	{Name: "bidi-echo-32B", Kind: BidiEcho, Size: 32, Cancellable: true, Chosen: true},
	{Name: "unary-32B-10-callers", Kind: Unary, Size: 32, Cancellable: true, Callers: 10, Chosen: true},
	{Name: "unary-32B-50-callers", Kind: Unary, Size: 32, Cancellable: true, Callers: 50},
	{Name: "unary-32B-100-callers", Kind: Unary, Size: 32, Cancellable: true, Callers: 100},
}

// peerRows are the rows of the tables of two processes. All contexts can be cancelled, as
// is usual in programs that call another process.
var peerRows = []Row{
	{Name: "empty", Kind: Empty, Cancellable: true},
	{Name: "two-integers", Kind: Pair, Cancellable: true},
	{Name: "string-100B", Kind: Text, Size: 100, Cancellable: true},
	{Name: "unary-record", Kind: Record, Size: proto.Size(record()), Cancellable: true},
	{Name: "unary-100KB", Kind: Unary, Size: 100 << 10, Cancellable: true, Chosen: true},
	{Name: "unary-1MB", Kind: Unary, Size: 1 << 20, Cancellable: true},
	{Name: "unary-10MB", Kind: Unary, Size: 10 << 20, Cancellable: true},
	{Name: "flat-1MB", Kind: FlatBuffer, Size: 1 << 20, Cancellable: true},
	{Name: "flat-10MB", Kind: FlatBuffer, Size: 10 << 20, Cancellable: true},
	{Name: "unary-32B-idle-1ms", Kind: Unary, Size: 32, Cancellable: true, Pause: time.Millisecond},
	{Name: "unary-32B-idle-100ms", Kind: Unary, Size: 32, Cancellable: true, Pause: 100 * time.Millisecond}, // a measurement has only a few operations
	{Name: "server-stream-100x32B", Kind: ServerStream, Size: 32, Messages: 100, Cancellable: true, Chosen: true},
	{Name: "client-stream-100x32B", Kind: ClientStream, Size: 32, Messages: 100, Cancellable: true},
	{Name: "bidi-echo-32B", Kind: BidiEcho, Size: 32, Cancellable: true, Chosen: true},
	{Name: "bidi-echo-32B-100-streams", Kind: BidiEcho, Size: 32, Cancellable: true, Callers: 100},
	{Name: "bidi-echo-32B-1000-streams", Kind: BidiEcho, Size: 32, Cancellable: true, Callers: 1000},
	{Name: "bidi-echo-32B-10000-streams", Kind: BidiEcho, Size: 32, Cancellable: true, Callers: 10_000},
	{Name: "unary-32B", Kind: Unary, Size: 32, Cancellable: true, Chosen: true},
	{Name: "unary-32B-10-callers", Kind: Unary, Size: 32, Cancellable: true, Callers: 10},
	{Name: "unary-32B-64-callers", Kind: Unary, Size: 32, Cancellable: true, Callers: 64},
	{Name: "unary-32B-100-callers", Kind: Unary, Size: 32, Cancellable: true, Callers: 100, Chosen: true},
	{Name: "unary-32B-1000-callers", Kind: Unary, Size: 32, Cancellable: true, Callers: 1000},
}

// Title describes the row in a report.
func (r Row) Title() string {
	title := r.Kind.Name
	switch {
	case r.Messages > 0:
		title += fmt.Sprintf(", %d × %s", r.Messages, size(r.Size))
	case r.Size > 0:
		title += ", " + size(r.Size)
	}
	if r.Pause > 0 {
		title += fmt.Sprintf(", after %v idle", r.Pause)
	}
	if r.Callers > 1 {
		title += fmt.Sprintf(", %d callers", r.Callers)
	}
	return title
}

// Context describes the context of the row's calls.
func (r Row) Context() string {
	if r.Cancellable {
		return "cancellable"
	}
	return "Background"
}

func size(n int) string {
	switch {
	case n >= 1<<20 && n%(1<<20) == 0:
		return fmt.Sprintf("%d MB", n>>20)
	case n >= 1<<10 && n%(1<<10) == 0:
		return fmt.Sprintf("%d KB", n>>10)
	}
	return fmt.Sprintf("%d B", n)
}

// A Field is a rival that is ready to be measured in a row.
type Field struct {
	Row   Row
	Rival Rival
	lanes []lane
	conn  Conn
	end   context.CancelFunc
}

// Open connects the rival and prepares the row's callers.
func Open(row Row, rival Rival) (*Field, error) {
	f := &Field{Row: row, Rival: rival, end: func() {}}
	ctx := context.Background()
	if row.Cancellable {
		ctx, f.end = context.WithCancel(ctx)
	}
	var err error
	if rival.Dial != nil {
		f.conn, err = rival.Dial(row)
	} else {
		f.conn, err = rival.Connect(service{messages: row.Messages})
	}
	if err != nil {
		f.end()
		return nil, f.wrap(err)
	}
	for range max(row.Callers, 1) {
		l, err := row.Kind.open(ctx, f.conn, row)
		if err != nil {
			_ = f.Close()
			return nil, f.wrap(err)
		}
		f.lanes = append(f.lanes, l)
	}
	return f, nil
}

// Close ends the lanes, the connection and the second process, if there is one.
func (f *Field) Close() error {
	var failed error
	for _, l := range f.lanes {
		if l.end == nil {
			continue
		}
		if err := l.end(); err != nil && failed == nil {
			failed = f.wrap(err)
		}
	}
	f.end()
	f.conn.Close()
	if f.conn.Peer != nil {
		if err := f.conn.Peer.stop(); err != nil && failed == nil {
			failed = f.wrap(fmt.Errorf("the second process ended badly: %w", err))
		}
	}
	return failed
}

func (f *Field) wrap(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s, %s: %w", f.Row.Name, f.Rival.Name, err)
}
