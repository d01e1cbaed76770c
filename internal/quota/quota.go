// Package quota tells how much processor time the system grants this process.
package quota

import (
	"io/fs"
	"math"
	"os"
	"path"
	"strconv"
	"strings"
)

// Processors returns how many processors' time the control groups of this process
// let it use: 0.5 for half of one. It is infinite where nothing limits it, and where
// the system does not say. It reads a few files.
func Processors() float64 { return processors(os.DirFS("/")) }

func processors(root fs.FS) float64 {
	least := math.Inf(1)
	for _, g := range groups(root) {
		// A group has its own limit, and those of the groups that it is in. In a
		// container these may not be there to see, nor even its own name, but only
		// what is mounted.
		for at := g.path; ; at = path.Dir(at) {
			least = min(least, g.limit(root, path.Join(g.mount, at)))
			if at == "/" || at == "." {
				break
			}
		}
	}
	return least
}

// A group is a control group of this process.
type group struct {
	mount, path string
	limit       func(root fs.FS, dir string) float64
}

// groups returns those that may limit this process's processors, of both versions.
func groups(root fs.FS) (all []group) {
	b, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(b)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3) // number, controllers, path
		if len(fields) < 3 {
			continue
		}
		controllers, at := fields[1], path.Clean("/"+fields[2])
		if controllers == "" {
			all = append(all, group{"sys/fs/cgroup", at, limit2})
		}
		for c := range strings.SplitSeq(controllers, ",") {
			if c == "cpu" {
				all = append(all, group{"sys/fs/cgroup/" + controllers, at, limit1})
			}
		}
	}
	return all
}

// limit2 reads "max 100000", or how many microseconds of so many are granted.
func limit2(root fs.FS, dir string) float64 {
	b, _ := fs.ReadFile(root, path.Join(dir, "cpu.max"))
	quota, period, _ := strings.Cut(strings.TrimSpace(string(b)), " ")
	return share(quota, period)
}

// limit1 reads the same from two files; -1 is without a limit.
func limit1(root fs.FS, dir string) float64 {
	quota, _ := fs.ReadFile(root, path.Join(dir, "cpu.cfs_quota_us"))
	period, _ := fs.ReadFile(root, path.Join(dir, "cpu.cfs_period_us"))
	return share(strings.TrimSpace(string(quota)), strings.TrimSpace(string(period)))
}

func share(quota, period string) float64 {
	q, err1 := strconv.ParseInt(quota, 10, 64)
	p, err2 := strconv.ParseInt(period, 10, 64)
	if err1 != nil || err2 != nil || q <= 0 || p <= 0 {
		return math.Inf(1)
	}
	return float64(q) / float64(p)
}
