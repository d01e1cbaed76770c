package quota

import (
	"math"
	"testing"
	"testing/fstest"
)

func TestTheLeastLimitHolds(t *testing.T) {
	none := math.Inf(1)
	for name, c := range map[string]struct {
		files map[string]string
		want  float64
	}{
		"no control groups": {nil, none},
		"version 2": {map[string]string{
			"proc/self/cgroup":            "0::/app\n",
			"sys/fs/cgroup/app/cpu.max":   "150000 100000\n",
			"sys/fs/cgroup/other/cpu.max": "1000 100000\n",
		}, 1.5},
		"without a limit": {map[string]string{
			"proc/self/cgroup":          "0::/app\n",
			"sys/fs/cgroup/app/cpu.max": "max 100000\n",
		}, none},
		"a group that it is in has less": {map[string]string{
			"proc/self/cgroup":               "0::/user/app\n",
			"sys/fs/cgroup/user/cpu.max":     "50000 100000\n",
			"sys/fs/cgroup/user/app/cpu.max": "400000 100000\n",
		}, 0.5},
		"a container that sees its own group alone": {map[string]string{
			"proc/self/cgroup":      "0::/\n",
			"sys/fs/cgroup/cpu.max": "200000 100000\n",
		}, 2},
		"a container that knows the machine's names": {map[string]string{
			"proc/self/cgroup":      "0::/docker/1234\n",
			"sys/fs/cgroup/cpu.max": "200000 100000\n",
		}, 2},
		"above the container": {map[string]string{
			"proc/self/cgroup":      "0::/../..\n",
			"sys/fs/cgroup/cpu.max": "200000 100000\n",
		}, 2},
		"version 1": {map[string]string{
			"proc/self/cgroup": "5:memory:/app\n4:cpu,cpuacct:/app\n0::/app\n",
			"sys/fs/cgroup/cpu,cpuacct/app/cpu.cfs_quota_us":  "250000\n",
			"sys/fs/cgroup/cpu,cpuacct/app/cpu.cfs_period_us": "100000\n",
		}, 2.5},
		"version 1 without a limit": {map[string]string{
			"proc/self/cgroup":                    "1:cpu:/\n",
			"sys/fs/cgroup/cpu/cpu.cfs_quota_us":  "-1\n",
			"sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
		}, none},
		"nonsense": {map[string]string{
			"proc/self/cgroup":      "cpu\n::\n0::/\n1:cpu:\n",
			"sys/fs/cgroup/cpu.max": "lots of them\n",
		}, none},
	} {
		t.Run(name, func(t *testing.T) {
			root := fstest.MapFS{}
			for at, text := range c.files {
				root[at] = &fstest.MapFile{Data: []byte(text)}
			}
			if got := processors(root); got != c.want {
				t.Errorf("it may use %v processors, want %v", got, c.want)
			}
		})
	}
}

func TestThisProcessHasSome(t *testing.T) {
	if got := Processors(); !(got > 0) {
		t.Errorf("it may use %v processors", got)
	}
}
