//go:build unix

package main

import (
	"os/exec"
	"syscall"
)

// inGroup starts cmd in its own process group, so that its children are killed with it.
func inGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}
