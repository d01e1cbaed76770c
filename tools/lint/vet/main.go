// Command vet is go vet for a system that nothing else is compiled for. It checks the types of all that a
// package imports from the source, where go vet compiles it, which takes several times as long.
package main

import (
	"golang.org/x/tools/go/analysis/multichecker"
	"golang.org/x/tools/go/analysis/suite/vet"
)

func main() { multichecker.Main(vet.Suite...) }
