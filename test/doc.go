// Package test has the tests of package nearcall that use it as programs do, over all transports.
package test
