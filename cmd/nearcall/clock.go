//go:build !windows

package main

import "time"

var started = time.Now()

// now returns the time since a fixed moment, at the best resolution the system has.
func now() time.Duration { return time.Since(started) }
