package call

import (
	"encoding/json"
	"errors"
)

// healthCheckConfig is what a service config says of health checks by the client. They
// do not exist here, where there is one server: grpc-go makes them for policies that
// choose among several, and passes over them with pick_first, its default.
type healthCheckConfig struct {
	HealthCheck json.RawMessage              `json:"healthCheckConfig"`
	Policies    []map[string]json.RawMessage `json:"loadBalancingConfig"`
	Policy      string                       `json:"loadBalancingPolicy"` // where there is no list
}

// check returns an error where grpc-go would check the server's health.
func (c *healthCheckConfig) check() error {
	if c.HealthCheck == nil || string(c.HealthCheck) == "null" {
		return nil
	}
	first := c.Policy == "" || c.Policy == "pick_first"
	if len(c.Policies) > 0 {
		_, first = c.Policies[0]["pick_first"]
	}
	if first {
		return nil
	}
	return errors.New("a healthCheckConfig is not available on nearcall's own targets; leave it out")
}
