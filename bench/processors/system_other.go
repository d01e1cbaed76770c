//go:build !linux

package main

import (
	"errors"
	"time"
)

var errSystem = errors.New("which CPUs a process uses can be said on Linux alone")

func cpuTime() (time.Duration, error)    { return 0, errSystem }
func allowedCPUs() ([]int, error)        { return nil, errSystem }
func confined([]int, func() error) error { return errSystem }
