package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"sync"
)

// A hired is a trader's process. It prints when it is ready, waits for a line, trades, and
// prints its account.
type hired struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// hire starts traders, lets them begin when all are ready, and returns their accounts.
func hire(ctx context.Context, target string, traders, orders int) ([]account, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // if one fails, ends the others
	var all []*hired
	for i := range traders {
		h, err := start(ctx, "-trade", target, "-orders", strconv.Itoa(orders), "-seed", strconv.Itoa(i+1))
		if err != nil {
			cancel()
			for _, h := range all {
				_ = h.cmd.Wait()
			}
			return nil, err
		}
		all = append(all, h)
	}
	var waiting sync.WaitGroup
	ready := make(chan struct{}, traders)
	begin := make(chan struct{})
	accounts, errs := make([]account, traders), make([]error, traders)
	for i, h := range all {
		waiting.Go(func() {
			errs[i] = h.work(ready, begin, &accounts[i])
			if errs[i] != nil {
				errs[i] = fmt.Errorf("trader %d: %w", i+1, errs[i])
				cancel()
			}
		})
	}
	for range all {
		<-ready
	}
	close(begin)
	waiting.Wait()
	return accounts, errors.Join(errs...)
}

// start runs this program in another process, which is killed when ctx is done.
func start(ctx context.Context, args ...string) (*hired, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &hired{cmd, in, bufio.NewReader(out)}, nil
}

// work conducts a trader's process until it ends.
func (h *hired) work(ready chan<- struct{}, begin <-chan struct{}, a *account) error {
	_, err := h.out.ReadString('\n')
	ready <- struct{}{} // sent even after a failure, so that the others can begin
	<-begin
	if err == nil {
		_, err = io.WriteString(h.in, "begin\n")
	}
	if err == nil {
		err = json.NewDecoder(h.out).Decode(a)
	}
	_ = h.in.Close()
	if ended := h.cmd.Wait(); ended != nil {
		return ended // it is more specific
	}
	return err
}
