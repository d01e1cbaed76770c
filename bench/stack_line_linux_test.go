package main

import (
	"encoding/binary"
	"strings"
	"testing"
	"time"
)

func lineOf(t *testing.T, answer func([]byte)) *line {
	t.Helper()
	at, stop, err := serveLineAs(answer)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	l, err := openLine(at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.free)
	return l
}

// TestALineSleepsAndWakes pauses for longer than the server polls.
func TestALineSleepsAndWakes(t *testing.T) {
	l := lineOf(t, func(b []byte) { b[0]++ })
	for n := range 5 {
		if n > 0 {
			for end := time.Now().Add(patience); l.asleep.Load() == 0; time.Sleep(lineVigil) {
				if time.Now().After(end) {
					t.Fatal("the server never sleeps")
				}
			}
		}
		for range 1000 {
			if got, err := l.swap([]byte("abc")); err != nil || string(got) != "bbc" {
				t.Fatalf("got %q, %v", got, err)
			}
		}
	}
}

func TestALineHasAnEnd(t *testing.T) {
	l := lineOf(t, func([]byte) {})
	if _, err := l.swap(make([]byte, lineSize)); err == nil || !strings.Contains(err.Error(), "too many") {
		t.Errorf("a message that does not fit: %v", err)
	}
	l.end()
	if _, err := l.swap(nil); err == nil || !strings.Contains(err.Error(), "nobody's") {
		t.Errorf("after the end: %v", err)
	}
	if _, err := openLine("/proc/self/fd/none"); err == nil {
		t.Error("a line that is not there was opened")
	}
}

func TestWrongBytesFailALine(t *testing.T) {
	table := overSharedMemory(0)
	honest := table.Rivals[table.place(Rival{Name: "watched-line"})]
	forging := Rival{Name: honest.Name, Dial: func(row Row) (Conn, error) {
		at, stop, err := serveLineAs(func(b []byte) { b[rawHead+int(binary.BigEndian.Uint32(b))/2]++ })
		if err != nil {
			return Conn{}, err
		}
		conn, err := dialLine("", at, row)
		free := conn.Close
		conn.Close = func() {
			free()
			stop()
		}
		return conn, err
	}}
	for _, row := range table.Rows {
		if !honest.Takes(row) || row.Kind.Name == Empty.Name {
			continue
		}
		t.Run("row="+row.Name, func(t *testing.T) {
			f, err := Open(row, forging)
			if err != nil {
				t.Fatal(err)
			}
			if err := f.Check(); err == nil {
				t.Error("a byte that differs was not noticed")
			}
			if err := f.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestALineGoesToAnotherProcessAndBack(t *testing.T) {
	if took, err := lineTrip(); err != nil || took <= 0 {
		t.Errorf("it took %v, %v", took, err)
	}
}
