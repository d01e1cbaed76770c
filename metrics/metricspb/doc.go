// Package metricspb has the generated code of the service Metrics.
package metricspb
