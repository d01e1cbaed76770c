//go:build linux

package attack

import (
	"path/filepath"
	"slices"
)

// Core makes the attacks over the paths of the core module. Their costs before were measured on the
// version of nearcall that they were found on, with an attacker on a machine of two processors.
var Core = Program{
	Table: "attacks",
	Listen: func(dir string) map[Path]string {
		return map[Path]string{
			overTCP: "tcp:127.0.0.1:0", overUnix: "unix:" + filepath.Join(dir, "unix"), overShm: "shm:" + filepath.Join(dir, "shm"),
		}
	},
	Probe:   probe,
	Attacks: slices.Concat(streamAttacks, blockAttacks, messageAttacks, descriptorAttacks, shmAttacks, lockAttacks, http2Attacks, http1Attacks, jsonAttacks, webSocketAttacks),
}
