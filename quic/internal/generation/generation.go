// Package generation does not compile with a version of package nearcall that another version
// of this module belongs to. The error names the constant, and it is the only one, because
// package quic, which imports this package, is not compiled then.
package generation

import "github.com/nearcall/nearcall/internal/registry"

const _ = registry.NearcallAndItsModulesMustHaveTheSameVersion2
