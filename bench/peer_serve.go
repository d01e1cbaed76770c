package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
)

// beThePeer serves until standard input ends if peerEnv is set, and reports whether it
// was. then wraps the services.
func beThePeer(then func(kind string, s service) Services) bool {
	value, ok := os.LookupEnv(peerEnv)
	if !ok {
		return false
	}
	signal.Ignore(os.Interrupt) // Ctrl-C ends the first process, which closes the input
	var setup peerSetup
	err := json.Unmarshal([]byte(value), &setup)
	if err == nil {
		if setup.Dir != "" {
			defer os.RemoveAll(setup.Dir)
		}
		err = servePeer(setup, then(setup.Services, service{messages: setup.Messages}), os.Stdin, os.Stdout)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "bench: the second process: %v\n", err)
		os.Exit(1)
	}
	return true
}

// honest returns the services of the tournament unchanged.
func honest(_ string, s service) Services { return s }

// servePeer serves until in ends, and answers the questions that it reads from it.
func servePeer(setup peerSetup, s Services, in io.Reader, out io.Writer) error {
	defer park(setup.Parked)()
	stack, ok := stacks[setup.Stack]
	if !ok {
		return fmt.Errorf("there is no stack %q", setup.Stack)
	}
	address, stop, err := stack.serve(setup.Network, setup.Address, s)
	if err != nil {
		return err
	}
	defer stop()
	if _, err := fmt.Fprintln(out, saysAddress, address); err != nil {
		return err
	}
	asked := bufio.NewScanner(in)
	for asked.Scan() {
		if asked.Text() != asksCPU {
			return fmt.Errorf("asked for %q", asked.Text())
		}
		if _, err := fmt.Fprintln(out, saysCPU, processCPU().Nanoseconds()); err != nil {
			return err
		}
	}
	return asked.Err()
}
