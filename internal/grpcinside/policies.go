package grpcinside

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"

	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/balancer/pickfirst"
	"google.golang.org/grpc/serviceconfig"
)

// In a service config, a wrapper replaces the policy. The wrapper's config has the policy's name and
// config, and the parts of the service config that apply to calls. Each policy has a wrapper with a
// separate name, so that grpc-go switches gracefully between them. Policies must be registered
// while a program starts. Which policies it will use is not known by then. So there is a fixed
// number of wrappers, and each is given to the first policy that needs one.

const wrappers = 16

func init() {
	for i := range wrappers {
		balancer.Register(wrapper(i))
	}
}

type wrapper int

// Name implements [balancer.Builder].
func (w wrapper) Name() string { return fmt.Sprint(wrapperPrefix, int(w)) }

const wrapperPrefix = "nearcall_wrapper_"

var given = struct {
	sync.Mutex
	to map[string]wrapper // by the policy's name
}{to: make(map[string]wrapper)}

// wrapperOf returns the wrapper of a policy. If there are more policies than wrappers, some share
// one, and grpc-go does not switch gracefully between these.
func wrapperOf(policy string) wrapper {
	given.Lock()
	defer given.Unlock()
	w, ok := given.to[policy]
	if !ok {
		w = wrapper(len(given.to) % wrappers)
		given.to[policy] = w
	}
	return w
}

// wrapperConfig is the JSON of a wrapper's config.
type wrapperConfig struct {
	Policy  string          `json:"policy"`
	Config  json.RawMessage `json:"config,omitempty"`
	Service string          `json:"service"` // see ServiceOf
}

// Rewrite returns a service config, in JSON, whose policy is a wrapper. If the service config is not
// valid it returns it unchanged, and grpc-go reports the error. valid says whether the parts that
// apply to calls are.
func Rewrite(text string, valid func(service string) bool) string {
	all := make(map[string]json.RawMessage)
	if json.Unmarshal([]byte(text), &all) != nil || !Policies.Found() {
		return text
	}
	applies := valid(ServiceOf(text)) // otherwise grpc-go reports the error
	own := wrapperConfig{Policy: pickfirst.Name, Service: ServiceOf(text)}
	var list json.RawMessage
	retries := false
	rest := make(map[string]json.RawMessage, len(all)+1)
	for k, v := range all { // encoding/json, and so grpc-go, ignores the case of keys
		switch strings.ToLower(k) {
		case "loadbalancingconfig":
			list = v
		case "loadbalancingpolicy":
			var name string
			if json.Unmarshal(v, &name) != nil {
				return text
			}
			if balancer.Get(name) != nil {
				own.Policy = name
			}
		case "methodconfig":
			rest[k], retries = v, true
		case "retrythrottling":
			if !applies {
				rest[k] = v
			}
		default:
			rest[k] = v
		}
	}
	if len(list) > 0 && string(list) != "null" {
		if own.Policy, own.Config = firstKnown(list); own.Policy == "" {
			return text
		}
	}
	if _, err := parsePolicy(own.Policy, own.Config); err != nil {
		return text
	}
	if applies && retries { // xDS, whose whole calls grpc-go retries, has no methodConfig here
		rest["retryThrottling"] = json.RawMessage(noRetries)
	}
	rest["loadBalancingConfig"], _ = json.Marshal([]map[string]any{{wrapperOf(own.Policy).Name(): own}})
	rewritten, _ := json.Marshal(rest) // no error: the values were parsed above
	return string(rewritten)
}

// IsRewritten reports whether text comes from Rewrite. It is false if text has an error for grpc-go
// to report.
func IsRewritten(text string) bool {
	var config struct {
		LoadBalancingConfig json.RawMessage `json:"loadBalancingConfig"`
	}
	if json.Unmarshal([]byte(text), &config) != nil {
		return true
	}
	name, _ := firstKnown(config.LoadBalancingConfig)
	return strings.HasPrefix(name, wrapperPrefix)
}

// noRetries is a retryThrottling that stops grpc-go's retries by a retryPolicy: there is never a whole token.
// It must not retry the calls that it makes for the channel, which retries them itself. The
// policies stay, because GetMethodConfig returns them.
const noRetries = `{"maxTokens": 0.001, "tokenRatio": 0.001}`

// firstKnown returns the first policy of a loadBalancingConfig that is registered, and its config.
func firstKnown(list json.RawMessage) (name string, config json.RawMessage) {
	var entries []map[string]json.RawMessage
	if json.Unmarshal(list, &entries) != nil {
		return "", nil
	}
	for _, entry := range entries {
		if len(entry) != 1 {
			return "", nil
		}
		for name, config := range entry {
			if balancer.Get(name) != nil {
				return name, config
			}
		}
	}
	return "", nil
}

func parsePolicy(name string, config json.RawMessage) (serviceconfig.LoadBalancingConfig, error) {
	parser, ok := balancer.Get(name).(balancer.ConfigParser)
	if !ok || len(config) == 0 && name == pickfirst.Name {
		return nil, nil
	}
	return parser.ParseConfig(config)
}

// ServiceOf returns the parts of a service config that apply to calls.
func ServiceOf(text string) string {
	all := make(map[string]json.RawMessage)
	_ = json.Unmarshal([]byte(text), &all) // if it fails, grpc-go refuses the config
	for k := range all {
		if !strings.EqualFold(k, "methodConfig") && !strings.EqualFold(k, "retryThrottling") {
			delete(all, k)
		}
	}
	service, _ := json.Marshal(all)
	return string(service)
}

// A PolicyConfig is a wrapper's config.
type PolicyConfig struct {
	serviceconfig.LoadBalancingConfig
	Name    string // the policy's
	Config  serviceconfig.LoadBalancingConfig
	Service string // see ServiceOf
}

// ParseConfig implements [balancer.ConfigParser].
func (wrapper) ParseConfig(text json.RawMessage) (serviceconfig.LoadBalancingConfig, error) {
	var c wrapperConfig
	if err := json.Unmarshal(text, &c); err != nil {
		return nil, err
	}
	if balancer.Get(c.Policy) == nil {
		return nil, fmt.Errorf("there is no policy %q", c.Policy)
	}
	config, err := parsePolicy(c.Policy, c.Config)
	return &PolicyConfig{Name: c.Policy, Config: config, Service: c.Service}, err
}

// A Wrapper makes the balancers that wrap policies, whose configs are *PolicyConfig. It is the
// credentials of the *grpc.ClientConn.
type Wrapper interface {
	Wrap(balancer.ClientConn, balancer.BuildOptions) balancer.Balancer
}

// Build implements [balancer.Builder].
func (wrapper) Build(cc balancer.ClientConn, o balancer.BuildOptions) balancer.Balancer {
	if w, ok := o.DialCreds.(Wrapper); ok {
		return w.Wrap(cc, o)
	}
	return &Policy{CC: cc, Opts: o}
}

// A Policy is the balancer of a wrapper. Its child is the policy that the latest config names.
// It implements [balancer.Balancer].
type Policy struct {
	CC    balancer.ClientConn // the child's
	Opts  balancer.BuildOptions
	Child *Child // nil before the first update

	name string
}

// A Child is the balancer that a policy wraps.
type Child struct {
	balancer.Balancer // nil while it is built
}

func (p *Policy) UpdateClientConnState(s balancer.ClientConnState) error {
	config, ok := s.BalancerConfig.(*PolicyConfig)
	if !ok {
		return fmt.Errorf("nearcall: a policy's config has type %T", s.BalancerConfig)
	}
	if p.Child != nil && p.name != config.Name { // there are more policies than wrappers
		p.Child.Close()
		p.Child = nil
	}
	if p.Child == nil {
		p.name, p.Child = config.Name, new(Child)
		p.Child.Balancer = balancer.Get(config.Name).Build(p.CC, p.Opts)
	}
	s.BalancerConfig = config.Config
	return p.Child.UpdateClientConnState(s)
}

func (p *Policy) ResolverError(err error) {
	if p.Child != nil {
		p.Child.ResolverError(err)
	}
}

// UpdateSubConnState implements [balancer.Balancer]. It is called only for SubConns without a listener.
func (p *Policy) UpdateSubConnState(sc balancer.SubConn, s balancer.SubConnState) {
	//lint:ignore SA1019 policies may still rely on it
	p.Child.UpdateSubConnState(sc, s)
}

func (p *Policy) ExitIdle() {
	if p.Child != nil {
		p.Child.ExitIdle()
	}
}

func (p *Policy) Close() {
	if p.Child != nil {
		p.Child.Close()
	}
}
