package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"

	"github.com/nearcall/nearcall"
)

// serverEnv is the environment variable that makes this program the second process. Its
// value is a setup in JSON.
const serverEnv = "NEARCALL_SUSPENDED_SERVER"

// A setup configures the second process.
type setup struct {
	Target string // the target to serve
	Loop   string // one of loopOptions
	Crowd  string // one of crowds
	Tasks  int
}

// beTheServer serves as the second process if serverEnv is set, and reports whether it was.
func beTheServer() bool {
	value, ok := os.LookupEnv(serverEnv)
	if !ok {
		return false
	}
	signal.Ignore(os.Interrupt) // it ends the first process, which closes the input
	var s setup
	err := json.Unmarshal([]byte(value), &s)
	if err == nil {
		err = s.serve(os.Stdin, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "suspended: the second process:", err)
		os.Exit(1)
	}
	return true
}

// serve serves, prints its target, and returns when in ends.
func (s setup) serve(in io.Reader, out io.Writer) (err error) {
	c, err := crowdNamed(s.Crowd)
	if err != nil {
		return err
	}
	lis, err := nearcall.Listen(s.Target)
	if err != nil {
		return err
	}
	h, err := newHost(s.Loop, c, s.Tasks)
	if err != nil {
		return errors.Join(err, lis.Close())
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = h.srv.Serve(lis)
	}()
	_, err = fmt.Fprintln(out, lis.Target())
	if err == nil {
		_, err = io.Copy(io.Discard, in)
	}
	err = errors.Join(err, h.end())
	<-served
	return err
}
