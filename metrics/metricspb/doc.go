// Package metricspb has the generated code of what package metrics shows.
package metricspb
