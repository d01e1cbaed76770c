// Package generation compiles only with the version of package nearcall that this version of
// the module belongs to. The compiler's only error names the constant, because it does not
// go on to package quic, which imports this package.
package generation

import "github.com/nearcall/nearcall/internal/registry"

const _ = registry.NearcallAndItsModulesMustHaveTheSameVersion3
