//go:build linux

// Command cmd measures what attacks on a nearcall server cost the server and what they cost the
// attacker, over the paths of the core module; see package attack.
//
//	go run ./internal/attack/cmd                every attack, some minutes
//	go run ./internal/attack/cmd -short         the same with smaller counts
//	go run ./internal/attack/cmd -only drain    those whose names match
//	go run ./internal/attack/cmd -list          their names
//	go run ./internal/attack/cmd -markdown docs/security.md
//	                                            write the table into the page
package main

import "github.com/nearcall/nearcall/internal/attack"

func main() { attack.Core.Main() }
