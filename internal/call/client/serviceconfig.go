package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nearcall/nearcall/internal/options"
)

// A ServiceConfig is the part of gRPC's service config that applies to single calls:
// https://github.com/grpc/grpc/blob/master/doc/service_config.md. Connections do not share it,
// because its throttler counts the failures of one connection.
type ServiceConfig struct {
	methods map[string]*methodConfig // by /service/method, /service/ or the empty string
	rest    *methodConfig            // of all other methods
}

// A methodConfig is what applies to a method. Its exported fields are JSON.
type methodConfig struct {
	Name                    []jsonName
	WaitForReady            *bool
	Timeout                 *jsonDuration
	MaxRequestMessageBytes  *jsonSize
	MaxResponseMessageBytes *jsonSize
	RetryPolicy             *retryPolicy // nil for no retries

	throttler *retryThrottler // shared by the connection's methods; nil for none
}

// noConfig is the config of methods that the service config does not name.
var noConfig methodConfig

// The JSON of a service config. As in grpc-go, unknown fields and hedgingPolicy are ignored.
type (
	jsonServiceConfig struct {
		healthCheckConfig
		MethodConfig    []methodConfig
		RetryThrottling *jsonRetryThrottling
	}
	jsonName            struct{ Service, Method string }
	jsonRetryThrottling struct{ MaxTokens, TokenRatio float64 }
)

// ConfigOf returns the service config with a text in JSON, as far as the options allow.
func ConfigOf(o *options.Client, text string) (*ServiceConfig, error) {
	s, err := ParseServiceConfig(text, o.MaxCallAttempts)
	if err == nil && o.NoRetry {
		s.disableRetry()
	}
	return s, err
}

// ParseServiceConfig parses a service config in JSON. maxCallAttempts limits the attempts
// of its retryPolicies. Its errors have grpc-go's texts.
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
	for i := range raw.MethodConfig {
		mc := &raw.MethodConfig[i]
		if mc.Name == nil {
			continue
		}
		if rp := mc.RetryPolicy; rp != nil {
			if !rp.valid() {
				return nil, fmt.Errorf("invalid retry policy (%+v): ", rp)
			}
			rp.MaxAttempts = min(rp.MaxAttempts, maxCallAttempts)
		}
		for _, n := range mc.Name {
			if err := sc.add(n, mc); err != nil {
				return nil, err
			}
		}
	}
	if t := raw.RetryThrottling; t != nil {
		if err := t.valid(); err != nil {
			return nil, err
		}
		rt := &retryThrottler{max: t.MaxTokens, thresh: t.MaxTokens / 2, ratio: t.TokenRatio, tokens: t.MaxTokens}
		sc.rest = &methodConfig{throttler: rt}
		for _, mc := range sc.methods {
			mc.throttler = rt
		}
	}
	return sc, nil
}

func (rp *retryPolicy) valid() bool {
	waits := rp.InitialBackoff > 0 && rp.MaxBackoff > 0 && rp.BackoffMultiplier > 0
	return waits && rp.MaxAttempts > 1 && len(rp.RetryableStatusCodes) > 0
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

// add makes mc the config of the methods that n names.
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

// disableRetry removes all retry policies and throttlers.
func (sc *ServiceConfig) disableRetry() {
	sc.rest = &noConfig
	for _, mc := range sc.methods {
		mc.RetryPolicy, mc.throttler = nil, nil
	}
}

// A jsonDuration is a duration in protobuf's JSON format.
type jsonDuration time.Duration

func (d jsonDuration) String() string { return time.Duration(d).String() }

// UnmarshalJSON implements [json.Unmarshaler].
func (d *jsonDuration) UnmarshalJSON(b []byte) error {
	var text string
	if err := json.Unmarshal(b, &text); err != nil {
		return err // in grpc-go's words
	}
	var p durationpb.Duration
	if err := protojson.Unmarshal(b, &p); err != nil {
		return fmt.Errorf("malformed duration %s; write seconds, as in \"1.5s\"", b)
	}
	*d = jsonDuration(p.AsDuration())
	return nil
}

// A jsonSize is a number of bytes. A number that does not fit an int becomes the closest that
// does.
type jsonSize int

// UnmarshalJSON implements [json.Unmarshaler].
func (n *jsonSize) UnmarshalJSON(b []byte) error {
	var whole int64
	err := json.Unmarshal(b, &whole)
	*n = jsonSize(max(math.MinInt, min(whole, math.MaxInt)))
	return err
}

// of returns the config of a method: its own, or that of its service, or the default.
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

// withTimeout returns ctx with the config's timeout, if there is one.
func (mc *methodConfig) withTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	if mc.Timeout == nil || *mc.Timeout < 0 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, time.Duration(*mc.Timeout))
}

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

// A retryPolicy says which calls of a method are retried, and how. It is JSON, and errors print it.
type retryPolicy struct {
	MaxAttempts          int // including the first
	InitialBackoff       jsonDuration
	MaxBackoff           jsonDuration
	BackoffMultiplier    float64
	RetryableStatusCodes []codes.Code
}

// A retryThrottler stops the retries of a connection while too many of its calls fail. It is a
// token bucket: a failure takes one token, a successful call adds ratio tokens. No call is retried
// while the bucket holds thresh tokens or fewer. A nil *retryThrottler never stops retries.
type retryThrottler struct {
	max, thresh, ratio float64

	mu     sync.Mutex
	tokens float64
}

// throttle records a failure and reports whether it must not be retried.
func (rt *retryThrottler) throttle() bool {
	if rt == nil {
		return false
	}
	rt.mu.Lock()
	defer rt.mu.Unlock()
	rt.tokens = max(rt.tokens-1, 0)
	return rt.tokens <= rt.thresh
}

// successfulRPC records a successful call.
func (rt *retryThrottler) successfulRPC() {
	if rt == nil {
		return
	}
	rt.mu.Lock()
	defer rt.mu.Unlock()
	rt.tokens = min(rt.tokens+rt.ratio, rt.max)
}

// replacedBy returns the config that m describes, with the throttler of mc.
//
//lint:ignore SA1019 it is what a config selector of xDS chooses
func (mc *methodConfig) replacedBy(m *grpc.MethodConfig) *methodConfig {
	own := &methodConfig{
		Timeout: (*jsonDuration)(m.Timeout), WaitForReady: m.WaitForReady, throttler: mc.throttler,
		MaxRequestMessageBytes: (*jsonSize)(m.MaxReqSize), MaxResponseMessageBytes: (*jsonSize)(m.MaxRespSize),
	}
	if p := m.RetryPolicy; p != nil {
		own.RetryPolicy = &retryPolicy{
			MaxAttempts: p.MaxAttempts, InitialBackoff: jsonDuration(p.InitialBackoff), MaxBackoff: jsonDuration(p.MaxBackoff),
			BackoffMultiplier: p.BackoffMultiplier, RetryableStatusCodes: slices.Collect(maps.Keys(p.RetryableStatusCodes)),
		}
	}
	return own
}
