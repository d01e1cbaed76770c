//go:build !linux

// Package rights says whether a unix socket takes descriptors from its peer. Linux
// alone has such a choice.
package rights

import "syscall"

// Refuse does nothing here.
func Refuse(syscall.Conn) {}

// RefuseFrom does nothing here.
func RefuseFrom(_, _ string, _ syscall.RawConn) error { return nil }
