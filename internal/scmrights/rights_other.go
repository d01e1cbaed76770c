//go:build !linux

// Package scmrights sets whether a unix socket accepts descriptors from its peer. Only Linux
// has this option.
package scmrights

import "syscall"

// Refuse does nothing here.
func Refuse(syscall.Conn) {}

// RefuseFrom does nothing here.
func RefuseFrom(_, _ string, _ syscall.RawConn) error { return nil }
