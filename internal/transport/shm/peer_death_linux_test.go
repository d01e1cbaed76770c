package shm

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Environment and file of a child process.
const (
	childDoes  = "NEARCALL_SHM_CHILD" // "sends" or "receives"
	childEnds  = "NEARCALL_SHM_KILL"  // the step at which it kills itself; 0 for never
	childsFile = 3                    // its socket
)

const (
	messages = 5
	message  = 2 * ringSize / messages // two rings of bytes in total, so that the sender must wait for room
)

// A child is another process with the other end of a connection.
type child struct {
	cmd    *exec.Cmd
	output bytes.Buffer
	conn   *Conn
	ended  chan ending
}

type ending struct {
	err error
	at  time.Time
}

func spawn(t *testing.T, does string, step int) *child {
	t.Helper()
	near, far, err := pair()
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(far), "nearcall")
	c := &child{cmd: exec.Command(os.Args[0], "-test.run=^TestAChild$", "-test.count=1", "-test.timeout=1m")}
	c.cmd.Env = append(os.Environ(), childDoes+"="+does, childEnds+"="+strconv.Itoa(step), "GORACE=atexit_sleep_ms=0")
	c.cmd.ExtraFiles = []*os.File{file}
	c.cmd.Stdout, c.cmd.Stderr = &c.output, &c.output
	err = c.cmd.Start()
	_ = file.Close()
	if err != nil {
		_ = near.Close()
		t.Fatal(err)
	}
	c.ended = make(chan ending, 1)
	go func() {
		err := c.cmd.Wait()
		c.ended <- ending{err, time.Now()}
	}()
	if c.conn, _, err = answer(near); err != nil {
		_ = near.Close()
		_ = c.cmd.Process.Kill()
		<-c.ended
		t.Fatalf("%v; the child says %q", err, &c.output)
	}
	return c
}

// wait waits for the child's end, and returns its time and whether the child was killed.
func (c *child) wait(t *testing.T) (at time.Time, killed bool) {
	t.Helper()
	e := soon(t, "the child", c.ended)
	if e.err == nil {
		return e.at, false
	}
	exit, ok := errors.AsType[*exec.ExitError](e.err)
	if !ok || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("%v; the child says %q", e.err, &c.output)
	}
	return e.at, true
}

// A mortal word kills the process at a given step. Each operation on a word has a step
// before and one after it.
type mortal struct {
	word
	steps *int // steps left, for all words
}

func (m mortal) step() {
	if *m.steps--; *m.steps == 0 {
		_ = unix.Kill(os.Getpid(), unix.SIGKILL)
		select {} // the signal arrives soon
	}
}

func (m mortal) Load() uint64 {
	m.step()
	v := m.word.Load()
	m.step()
	return v
}

func (m mortal) Store(v uint64) {
	m.step()
	m.word.Store(v)
	m.step()
}

// TestAChild is the child process of other tests.
func TestAChild(t *testing.T) {
	does := os.Getenv(childDoes)
	if does == "" {
		t.Skip("only in a child process")
	}
	steps, err := strconv.Atoi(os.Getenv(childEnds))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := socketOf(childsFile)
	if err != nil {
		t.Fatal(err)
	}
	c, _, err := Offer(conn, plenty)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if steps > 0 {
		for _, w := range []*word{
			&c.out.sender.tail, &c.out.sender.wants, &c.out.sender.head, &c.out.sender.asleep,
			&c.in.receiver.head, &c.in.receiver.asleep, &c.in.receiver.tail, &c.in.receiver.wants,
		} {
			*w = mortal{*w, &steps}
		}
	}
	data := pattern(messages * message)
	switch does {
	case "sends":
		for ; len(data) > 0; data = data[message:] {
			if _, err := c.Write(data[:message]); err != nil {
				t.Fatal(err)
			}
		}
		// What was sent is received before the connection ends.
		if _, err := c.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	case "receives":
		for buf := make([]byte, message); len(data) > 0; {
			n, err := c.Read(buf)
			if err != nil || !bytes.HasPrefix(data, buf[:n]) {
				t.Fatal(n, err)
			}
			data = data[n:]
		}
		if _, err := c.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
	}
}

// eachStep starts one child after the other, each of which dies one step later than the
// last, until one survives. f uses the other end of each connection until it ends.
func eachStep(t *testing.T, does string, f func(t *testing.T, c *Conn)) {
	if testing.Short() {
		t.Skip("starts many processes")
	}
	step := 1
	for killed := true; killed && !t.Failed(); step++ {
		t.Run(fmt.Sprintf("step %d", step), func(t *testing.T) {
			leavesNothing(t, func() {
				c := spawn(t, does, step)
				defer c.conn.Close()
				f(t, c.conn)
				learnt := time.Now()
				var ended time.Time
				ended, killed = c.wait(t)
				if late := learnt.Sub(ended); late > time.Second {
					t.Errorf("this side learns of the child's end %v later", late)
				}
			})
		})
	}
	if step < 20 {
		t.Errorf("the child has %d steps", step)
	}
}

// receiveAll reads until the connection ends, and returns the bytes. It answers once all
// have arrived.
func receiveAll(c *Conn) ([]byte, error) {
	var got []byte
	buf := make([]byte, message)
	for {
		n, err := c.Read(buf)
		got = append(got, buf[:n]...)
		if n > 0 && len(got) == messages*message {
			_, err = c.Write([]byte("x"))
		}
		if err != nil {
			return got, err
		}
	}
}

func TestWhatASenderPublishedIsReadAfterItsDeath(t *testing.T) {
	eachStep(t, "sends", func(t *testing.T, c *Conn) {
		got, err := receiveAll(c)
		if err != io.EOF {
			t.Error(err)
		}
		if !bytes.HasPrefix(pattern(messages*message), got) {
			t.Errorf("%d bytes came that are not those that were sent", len(got))
		}
		if tail := c.in.tail.Load(); uint64(len(got)) != tail {
			t.Errorf("%d bytes came, and %d were published", len(got), tail)
		}
	})
}

func TestAWriteEndsWhenItsReceiverDies(t *testing.T) {
	eachStep(t, "receives", func(t *testing.T, c *Conn) {
		data := pattern(messages * message)
		n, err := c.Write(data)
		if (err == nil) != (n == len(data)) || err != nil && !errors.Is(err, syscall.EPIPE) {
			t.Errorf("%d of %d bytes were written, %v", n, len(data), err)
		}
		if got, err := io.ReadAll(c); len(got) > 1 || err != nil {
			t.Errorf("%q, %v", got, err)
		}
	})
}
