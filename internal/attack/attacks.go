//go:build linux

package main

import "slices"

// attacks are all attacks. Their costs before were measured on the version of nearcall that
// they were found on, with an attacker on a machine of two processors.
var attacks = slices.Concat(streamAttacks, blockAttacks, messageAttacks, descriptorAttacks, shmAttacks, lockAttacks, http2Attacks, http1Attacks, webSocketAttacks)
