package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// offered returns the congestion controls that the kernel has at present.
func offered() ([]string, error) {
	text, err := os.ReadFile("/proc/sys/net/ipv4/tcp_available_congestion_control")
	all := strings.Fields(string(text))
	slices.Sort(all)
	return all, err
}

// controlled returns a function for net.Dialer and net.ListenConfig that sets a socket's
// congestion control. The connections that a listener accepts have the listener's.
func controlled(congestion string) func(network, address string, c syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		var failed error
		err := c.Control(func(fd uintptr) {
			failed = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, congestion)
			if failed != nil {
				failed = fmt.Errorf("congestion control %q: %w", congestion, failed)
			}
		})
		if err != nil {
			return err
		}
		return failed
	}
}
