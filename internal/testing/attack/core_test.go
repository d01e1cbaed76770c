//go:build linux

package attack

import (
	"errors"
	"path/filepath"
	"slices"
)

// core makes the attacks over the paths of the core module. Their costs before were measured on the
// version of nearcall that they were found on, with an attacker on a machine of two processors.
var core = Program{
	Table:    "../../../docs/results/attacks.csv",
	Declines: func(err error) bool { return errors.Is(err, errDeclined) },
	flaws:    flaws,
	Listen: func(dir string) map[Path]string {
		return map[Path]string{
			overTCP: "tcp:127.0.0.1:0", overUnix: "unix:" + filepath.Join(dir, "unix"), overShm: "shm:" + filepath.Join(dir, "shm"),
		}
	},
	Probe:   probe,
	Attacks: slices.Concat(streamAttacks, blockAttacks, messageAttacks, descriptorAttacks, shmAttacks, lockAttacks, http2Attacks, http1Attacks, jsonAttacks, webSocketAttacks),
}
