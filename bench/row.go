package main

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/proto"
)

// A Row is one thing that is measured. Rows differ in data, not in code.
type Row struct {
	Name        string // also the benchmark's: keep it
	Kind        Kind
	Size        int  // of a payload or record, in bytes
	Messages    int  // of a stream that the server sends
	Cancellable bool // of the calls' context, which is Background otherwise
	Callers     int  // goroutines that call at the same time; none means one
	Chosen      bool // for the short picture
}

// Rows is the tournament.
var Rows = []Row{
	{Name: "unary-32B", Kind: Unary, Size: 32, Chosen: true},
	{Name: "unary-32B-cancellable", Kind: Unary, Size: 32, Cancellable: true, Chosen: true},
	{Name: "unary-64B", Kind: Unary, Size: 64},
	{Name: "unary-1KB", Kind: Unary, Size: 1 << 10},
	{Name: "unary-10KB", Kind: Unary, Size: 10 << 10},
	{Name: "unary-100KB", Kind: Unary, Size: 100 << 10, Chosen: true},
	{Name: "unary-1MB", Kind: Unary, Size: 1 << 20},
	{Name: "unary-record", Kind: Record, Size: proto.Size(record()), Chosen: true},
	{Name: "server-stream-100x32B", Kind: ServerStream, Size: 32, Messages: 100, Cancellable: true, Chosen: true},
	{Name: "bidi-echo-32B", Kind: BidiEcho, Size: 32, Cancellable: true, Chosen: true},
	{Name: "unary-32B-10-callers", Kind: Unary, Size: 32, Cancellable: true, Callers: 10, Chosen: true},
	{Name: "unary-32B-50-callers", Kind: Unary, Size: 32, Cancellable: true, Callers: 50},
	{Name: "unary-32B-100-callers", Kind: Unary, Size: 32, Cancellable: true, Callers: 100},
}

// Title says what the row is, for people.
func (r Row) Title() string {
	title := r.Kind.Name + ", "
	if r.Messages > 0 {
		title += fmt.Sprintf("%d × ", r.Messages)
	}
	title += size(r.Size)
	if r.Callers > 1 {
		title += fmt.Sprintf(", %d callers", r.Callers)
	}
	return title
}

// Context says what context the calls have.
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

// A Field is a row with a rival in it, ready to be measured.
type Field struct {
	Row   Row
	Rival Rival
	lanes []lane
	conn  Conn
	end   context.CancelFunc
}

// Open connects the rival and readies the callers of the row.
func Open(row Row, rival Rival) (*Field, error) {
	f := &Field{Row: row, Rival: rival, end: func() {}}
	ctx := context.Background()
	if row.Cancellable {
		ctx, f.end = context.WithCancel(ctx)
	}
	var err error
	if f.conn, err = rival.Connect(service{messages: row.Messages}); err != nil {
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

// Close ends the lanes and the connection, and everything that they started.
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
	return failed
}

func (f *Field) wrap(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s, %s: %w", f.Row.Name, f.Rival.Name, err)
}
