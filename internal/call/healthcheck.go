package call

import (
	"encoding/json"
	"errors"
)

// healthCheckConfig is the part of a service config that decides whether a client makes
// health checks. nearcall makes none, because a target is one server. grpc-go makes them
// for balancing policies that choose among servers, but not for pick_first, its default.
type healthCheckConfig struct {
	HealthCheck json.RawMessage              `json:"healthCheckConfig"`
	Policies    []map[string]json.RawMessage `json:"loadBalancingConfig"`
	Policy      string                       `json:"loadBalancingPolicy"` // used if Policies is empty
}

// check returns an error if grpc-go would make health checks.
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
