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

	"google.golang.org/grpc/codes"
)

// A ServiceConfig is the part of gRPC's service config that concerns single
// calls: https://github.com/grpc/grpc/blob/master/doc/service_config.md. Each
// connection has its own, as its throttler counts the failures of that connection.
type ServiceConfig struct {
	methods map[string]*methodConfig // by /service/method, /service/ or the empty string
	rest    *methodConfig            // of methods without any
}

type methodConfig struct {
	timeout        *time.Duration
	waitForReady   *bool
	maxRequest     *int
	maxResponse    *int
	retryPolicy    *retryPolicy    // nil for no retries
	retryThrottler *retryThrottler // the connection's; nil for none
}

// noConfig is what methods without a config have.
var noConfig methodConfig

// DefaultMaxCallAttempts is how many attempts a call is made with at most, where
// a retryPolicy wants more and nothing else is said.
const DefaultMaxCallAttempts = 5

// The JSON of a service config. As in grpc-go what is not known is passed over,
// hedgingPolicy included.
type (
	jsonServiceConfig struct {
		healthCheckConfig
		MethodConfig    []jsonMethodConfig
		RetryThrottling *jsonRetryThrottling
	}
	jsonMethodConfig struct {
		Name                    *[]jsonName
		WaitForReady            *bool
		Timeout                 *jsonDuration
		MaxRequestMessageBytes  *int
		MaxResponseMessageBytes *int
		RetryPolicy             *jsonRetryPolicy
	}
	jsonName            struct{ Service, Method string }
	jsonRetryThrottling struct{ MaxTokens, TokenRatio float64 }
	jsonRetryPolicy     struct { // as errors show it
		MaxAttempts          int
		InitialBackoff       jsonDuration
		MaxBackoff           jsonDuration
		BackoffMultiplier    float64
		RetryableStatusCodes []codes.Code
	}
)

// ParseServiceConfig reads a service config in JSON, whose calls are made with
// maxCallAttempts at most. Its errors have grpc-go's words.
func ParseServiceConfig(text string, maxCallAttempts int) (*ServiceConfig, error) {
	sc, err := parseServiceConfig(text, maxCallAttempts)
	if err != nil {
		return nil, fmt.Errorf("the provided default service config is invalid: %w", err)
	}
	return sc, nil
}

func parseServiceConfig(text string, maxCallAttempts int) (*ServiceConfig, error) {
	if text == "" {
		return nil, errors.New("no JSON service config provided")
	}
	var raw jsonServiceConfig
	if err := json.Unmarshal([]byte(text), &raw); err != nil {
		return nil, err
	}
	if err := raw.check(); err != nil {
		return nil, err
	}
	sc := &ServiceConfig{methods: make(map[string]*methodConfig), rest: &noConfig}
	for _, m := range raw.MethodConfig {
		if m.Name == nil {
			continue
		}
		mc, err := m.config(maxCallAttempts)
		if err != nil {
			return nil, err
		}
		for _, n := range *m.Name {
			if err := sc.add(n, mc); err != nil {
				return nil, err
			}
		}
	}
	if t := raw.RetryThrottling; t != nil {
		if err := t.valid(); err != nil {
			return nil, err
		}
		sc.throttle(&retryThrottler{max: t.MaxTokens, thresh: t.MaxTokens / 2, ratio: t.TokenRatio, tokens: t.MaxTokens})
	}
	return sc, nil
}

func (m *jsonMethodConfig) config(maxCallAttempts int) (*methodConfig, error) {
	mc := &methodConfig{waitForReady: m.WaitForReady, timeout: (*time.Duration)(m.Timeout), maxRequest: m.MaxRequestMessageBytes, maxResponse: m.MaxResponseMessageBytes}
	rp := m.RetryPolicy
	if rp == nil {
		return mc, nil
	}
	if rp.MaxAttempts <= 1 || rp.InitialBackoff <= 0 || rp.MaxBackoff <= 0 || rp.BackoffMultiplier <= 0 || len(rp.RetryableStatusCodes) == 0 {
		return nil, fmt.Errorf("invalid retry policy (%+v): ", rp)
	}
	mc.retryPolicy = &retryPolicy{
		maxAttempts:          min(rp.MaxAttempts, maxCallAttempts),
		initialBackoff:       time.Duration(rp.InitialBackoff),
		maxBackoff:           time.Duration(rp.MaxBackoff),
		backoffMultiplier:    rp.BackoffMultiplier,
		retryableStatusCodes: make(map[codes.Code]bool),
	}
	for _, code := range rp.RetryableStatusCodes {
		mc.retryPolicy.retryableStatusCodes[code] = true
	}
	return mc, nil
}

func (t *jsonRetryThrottling) valid() error {
	switch {
	case t.MaxTokens <= 0 || t.MaxTokens > 1000:
		return fmt.Errorf("invalid retry throttling config: maxTokens (%v) out of range (0, 1000]", t.MaxTokens)
	case t.TokenRatio <= 0:
		return fmt.Errorf("invalid retry throttling config: tokenRatio (%v) may not be negative", t.TokenRatio)
	}
	return nil
}

// add gives the methods that n names the config mc.
func (sc *ServiceConfig) add(n jsonName, mc *methodConfig) error {
	key := ""
	switch {
	case n.Service != "":
		key = "/" + n.Service + "/" + n.Method
	case n.Method != "":
		return errors.New("cannot combine empty 'service' and non-empty 'method'")
	}
	if sc.methods[key] != nil {
		return errors.New("duplicated name")
	}
	sc.methods[key] = mc
	return nil
}

// throttle makes rt count the calls of all methods.
func (sc *ServiceConfig) throttle(rt *retryThrottler) {
	sc.rest = &methodConfig{retryThrottler: rt}
	for _, mc := range sc.methods {
		mc.retryThrottler = rt
	}
}

// DisableRetry removes all that sc says of retries.
func (sc *ServiceConfig) DisableRetry() {
	sc.rest = &noConfig
	for _, mc := range sc.methods {
		mc.retryPolicy, mc.retryThrottler = nil, nil
	}
}

// A jsonDuration is a duration in protobuf's JSON form.
type jsonDuration time.Duration

func (d jsonDuration) String() string { return time.Duration(d).String() }

// UnmarshalJSON implements [json.Unmarshaler].
func (d *jsonDuration) UnmarshalJSON(b []byte) error {
	var text string
	if err := json.Unmarshal(b, &text); err != nil {
		return err
	}
	parsed, err := parseJSONDuration(text)
	*d = jsonDuration(parsed)
	return err
}

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
	return sc.rest
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
