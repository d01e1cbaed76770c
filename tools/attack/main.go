//go:build linux

// Command attack measures what attacks on a nearcall server cost the server and what they cost the
// attacker, over the paths of the core module; see package attack.
//
//	go run ./tools/attack                every attack, some minutes
//	go run ./tools/attack -short         the same with smaller counts
//	go run ./tools/attack -only drain    those whose names match
//	go run ./tools/attack -list          their names
//	go run ./tools/attack -csv docs/results
//	                                     write the table to attacks.csv there
package main

import "github.com/nearcall/nearcall/internal/testing/attack"

func main() { attack.Core.Main() }
