//go:build linux

package main

import "slices"

// attacks are all there are. What one cost before was measured on the engine that
// it was found on, by an attacker on a machine of two processors.
var attacks = slices.Concat(streamAttacks, blockAttacks, messageAttacks, descriptorAttacks, shmAttacks)
