//go:build !linux

package main

import (
	"errors"
	"syscall"
)

func offered() ([]string, error) { return nil, nil }

func controlled(string) func(network, address string, c syscall.RawConn) error {
	return func(string, string, syscall.RawConn) error {
		return errors.New("this system does not let a program choose a congestion control")
	}
}
