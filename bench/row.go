package main

import (
	"context"
	"fmt"
)

// A Row is one thing that is measured. Rows differ in data, not in code.
type Row struct {
	Name        string // also the benchmark's: keep it
	Kind        Kind
	Size        int  // of a payload, in bytes
	Messages    int  // of a stream that the server sends
	Cancellable bool // of the calls' context, which is Background otherwise
	Callers     int  // goroutines that call at the same time; none means one
}

// Rows is the tournament.
var Rows = []Row{
	{Name: "unary-32B", Kind: Unary, Size: 32},
	{Name: "unary-32B-cancellable", Kind: Unary, Size: 32, Cancellable: true},
	{Name: "server-stream-100x32B", Kind: ServerStream, Size: 32, Messages: 100, Cancellable: true},
	{Name: "bidi-echo-32B", Kind: BidiEcho, Size: 32, Cancellable: true},
}

// A Field is a row with a rival in it, ready to be measured.
type Field struct {
	Row   Row
	Rival Rival
	lanes []lane
	conn  Conn
	end   context.CancelFunc
}

// A lane is what one caller does, over and over. do fails on a wrong answer.
// end, which may be nil, ends in good order what began with the lane.
type lane struct{ do, end func() error }

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
		l, err := row.Kind.open(ctx, f.conn.Client, row)
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

func (f *Field) wrap(err error) error { return fmt.Errorf("%s, %s: %w", f.Row.Name, f.Rival.Name, err) }
