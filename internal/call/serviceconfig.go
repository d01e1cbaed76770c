package call

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// A ServiceConfig is the part of gRPC's service config that concerns single
// calls: https://github.com/grpc/grpc/blob/master/doc/service_config.md.
type ServiceConfig struct {
	methods map[string]*methodConfig // by /service/method, /service/ or the empty string
}

type methodConfig struct {
	timeout      *time.Duration
	waitForReady *bool
	maxRequest   *int
	maxResponse  *int
}

// noConfig is what methods without a config have.
var noConfig methodConfig

// ParseServiceConfig reads a service config in JSON. What would change how
// calls are made, and is not known here, is an error.
func ParseServiceConfig(text string) (*ServiceConfig, error) {
	var raw struct {
		MethodConfig []struct {
			Name []struct {
				Service string `json:"service"`
				Method  string `json:"method"`
			} `json:"name"`
			Timeout       *string         `json:"timeout"`
			WaitForReady  *bool           `json:"waitForReady"`
			MaxRequest    *int            `json:"maxRequestMessageBytes"`
			MaxResponse   *int            `json:"maxResponseMessageBytes"`
			RetryPolicy   json.RawMessage `json:"retryPolicy"`
			HedgingPolicy json.RawMessage `json:"hedgingPolicy"`
		} `json:"methodConfig"`
	}
	if err := json.Unmarshal([]byte(text), &raw); err != nil {
		return nil, fmt.Errorf("malformed service config: %w", err)
	}
	sc := &ServiceConfig{methods: make(map[string]*methodConfig)}
	for _, mc := range raw.MethodConfig {
		if present(mc.RetryPolicy) || present(mc.HedgingPolicy) {
			return nil, errors.New("service config: retryPolicy and hedgingPolicy are not available on nearcall's own targets; leave them out, or dial grpc:TARGET")
		}
		config := &methodConfig{waitForReady: mc.WaitForReady, maxRequest: mc.MaxRequest, maxResponse: mc.MaxResponse}
		if mc.Timeout != nil {
			d, err := parseJSONDuration(*mc.Timeout)
			if err != nil {
				return nil, fmt.Errorf("service config: %w", err)
			}
			config.timeout = &d
		}
		for _, n := range mc.Name {
			key := ""
			switch {
			case n.Service != "":
				key = "/" + n.Service + "/" + n.Method
			case n.Method != "":
				return nil, fmt.Errorf("service config: the name of method %q has no service", n.Method)
			}
			if sc.methods[key] != nil {
				return nil, fmt.Errorf("service config: %q is named twice", key)
			}
			sc.methods[key] = config
		}
	}
	return sc, nil
}

// present reports whether a field is there: null is what is not.
func present(field json.RawMessage) bool { return field != nil && string(field) != "null" }

// parseJSONDuration reads protobuf's JSON form of a duration, as in "1.5s".
func parseJSONDuration(s string) (time.Duration, error) {
	if number, ok := strings.CutSuffix(s, "s"); ok && strings.Trim(number, "-.0123456789") == "" {
		if sec, err := strconv.ParseFloat(number, 64); err == nil {
			const most = 9e9 // seconds: longer than any clock will see
			return time.Duration(math.Round(max(-most, min(sec, most)) * float64(time.Second))), nil
		}
	}
	return 0, fmt.Errorf("malformed duration %q; write seconds, as in \"1.5s\"", s)
}

// of returns the config of a method: its own, its service's, or everybody's.
func (sc *ServiceConfig) of(method string) *methodConfig {
	if sc == nil {
		return &noConfig
	}
	if mc := sc.methods[method]; mc != nil {
		return mc
	}
	if mc := sc.methods[method[:strings.LastIndexByte(method, '/')+1]]; mc != nil {
		return mc
	}
	if mc := sc.methods[""]; mc != nil {
		return mc
	}
	return &noConfig
}

// limit is a size that the config, a call option, both or nobody limits.
func limit(config *int, option, byDefault int) int {
	switch {
	case config == nil && option == unset:
		return byDefault
	case config == nil:
		return option
	case option == unset:
		return *config
	}
	return min(*config, option)
}

// withTimeout returns ctx as the config bounds it; cancel is nil where it does
// not.
func (mc *methodConfig) withTimeout(ctx context.Context) (bounded context.Context, cancel context.CancelFunc) {
	if mc.timeout == nil || *mc.timeout < 0 {
		return ctx, nil
	}
	return context.WithTimeout(ctx, *mc.timeout)
}
