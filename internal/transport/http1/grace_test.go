package http1

import (
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// TestTheGraceOfAnOldConnectionBeginsWithTheAnswer that tells its client, however long the
// connection was idle before. A call that runs at the largest age has the grace from then on.
func TestTheGraceOfAnOldConnectionBeginsWithTheAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		c := &conn2{server: new(Server), Conn: ours, born: time.Now(), most: time.Minute, grace: 10 * time.Second}
		c.timer = time.AfterFunc(c.most, c.aged)
		ended := make(chan time.Duration)
		go func() {
			_, _ = theirs.Read(make([]byte, 1))
			ended <- time.Since(c.born)
		}()
		time.Sleep(2 * time.Minute) // idle
		c.answers(1)
		time.Sleep(time.Hour) // a handler
		if !c.old() {
			t.Error("it is not old")
		}
		if d := <-ended; d != time.Hour+2*time.Minute+10*time.Second {
			t.Errorf("it ended after %v", d)
		}

		ours, theirs = net.Pipe()
		c = &conn2{server: new(Server), Conn: ours, born: time.Now(), most: time.Minute, grace: 10 * time.Second}
		c.timer = time.AfterFunc(c.most, c.aged)
		c.answers(1)
		if c.old() {
			t.Error("it is old")
		}
		if _, err := theirs.Read(make([]byte, 1)); err != io.EOF || time.Since(c.born) != 70*time.Second {
			t.Errorf("%v after %v", err, time.Since(c.born))
		}
	})
}
