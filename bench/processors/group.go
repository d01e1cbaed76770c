package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// A group is the directory of a cgroup that this program has made.
type group string

const period = 100_000 // of a quota, in microseconds

// newGroup returns a group whose processes together get the given percentage of one CPU.
func newGroup(percent int) (*group, error) {
	quota := strconv.Itoa(percent * period / 100)
	var errs error
	for _, version := range []struct{ root, file, value string }{
		{"/sys/fs/cgroup/cpu", "cpu.cfs_quota_us", quota}, // v1
		{"/sys/fs/cgroup", "cpu.max", fmt.Sprint(quota, " ", period)},
	} {
		dir, err := os.MkdirTemp(version.root, "nearcall-processors-")
		if err == nil {
			g := group(dir)
			if err = g.write(version.file, version.value); err == nil {
				return &g, nil
			}
			err = errors.Join(err, g.remove())
		}
		errs = errors.Join(errs, err)
	}
	return nil, fmt.Errorf("a quota needs a cgroup that this process can make, with the cpu controller:\n%w", errs)
}

// write writes to one of the group's control files.
func (g *group) write(file, value string) error {
	f, err := os.OpenFile(filepath.Join(string(*g), file), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

// add moves a process into the group.
func (g *group) add(pid int) error { return g.write("cgroup.procs", strconv.Itoa(pid)) }

// remove removes the group. Its processes must have ended. It retries, because the kernel
// might take a moment to notice.
func (g *group) remove() error {
	var err error
	for range 100 {
		if err = os.Remove(string(*g)); err == nil {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return err
}
