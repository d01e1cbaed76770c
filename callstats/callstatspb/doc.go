// Package callstatspb has the generated code of the service that package callstats offers.
package callstatspb
