package balance

import (
	"context"
	"reflect"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/attributes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/call"
)

// The resolver of xDS passes a config selector with its results. It chooses the cluster, the timeout
// and the retries of each call by the routes of the control plane. grpc-go's function that gets it out
// of a result is internal, so this file uses reflection: without it, grpc-go would have to make
// each call as a whole, as it does with HTTP filters. A test fails if a version of grpc-go differs.

// A selector is a config selector that can be replaced.
type selector struct {
	mu       sync.RWMutex // held for reading while a call uses it
	replaced bool
	choose   reflect.Value // its method SelectConfig
	info     reflect.Type  // that method's parameter
}

// selectorOf returns the config selector of a resolver's result, or nil if there is none.
func selectorOf(s resolver.State) *selector {
	v := selectorIn(s.Attributes)
	if v == nil {
		return nil
	}
	choose := reflect.ValueOf(v).MethodByName("SelectConfig")
	if !choose.IsValid() || choose.Type().NumIn() != 1 || choose.Type().NumOut() != 2 {
		return &selector{}
	}
	info, config := choose.Type().In(0), choose.Type().Out(0)
	if !hasFields(info, "Context", "Method", "Authority") || !hasFields(config.Elem(), "Context", "MethodConfig", "OnCommitted", "Interceptor") {
		return &selector{}
	}
	return &selector{choose: choose, info: info}
}

func hasFields(t reflect.Type, names ...string) bool {
	return !slices.ContainsFunc(names, func(name string) bool {
		_, ok := t.FieldByName(name)
		return !ok
	})
}

// selectorIn returns the value of the attribute with which grpc-go passes a config selector.
func selectorIn(a *attributes.Attributes) any {
	const name = "grpc.internal.resolver.configSelector"
	for at := reflect.ValueOf(a); at.Kind() == reflect.Pointer && !at.IsNil(); {
		all := at.Elem()
		key := all.FieldByName("key")
		if !key.IsValid() || key.Kind() != reflect.Interface {
			return nil
		}
		if key = key.Elem(); key.Kind() == reflect.String && key.String() == name {
			same := reflect.New(key.Type()).Elem()
			same.SetString(name)
			return a.Value(same.Interface())
		}
		at = all.FieldByName("parent")
	}
	return nil
}

// replace waits until no call uses the selector, and makes later calls use its successor.
func (s *selector) replace() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.replaced = true
}

// choose asks the channel's config selector which config applies to a call. Its errors are
// grpc-go's.
func (c *Channel) choose(ctx context.Context, s *selector, to call.Selection, method string) (call.Selection, error) {
	if !s.choose.IsValid() {
		to.Through = c.whole
		return to, nil
	}
	s.mu.RLock()
	if s.replaced {
		s.mu.RUnlock()
		return c.Select(ctx, method)
	}
	defer s.mu.RUnlock()
	info := reflect.New(s.info).Elem()
	info.FieldByName("Context").Set(reflect.ValueOf(ctx))
	info.FieldByName("Method").SetString(method)
	info.FieldByName("Authority").SetString(c.authority)
	results := s.choose.Call([]reflect.Value{info})
	if err, _ := results[1].Interface().(error); err != nil {
		st, ok := status.FromError(err)
		switch {
		case !ok:
			err = status.Convert(err).Err()
		case call.IsControlPlaneOnly(st.Code()):
			err = status.Errorf(codes.Internal, "config selector returned illegal status: %v", err)
		}
		return to, err
	}
	if results[0].IsNil() {
		return to, nil
	}
	config := results[0].Elem()
	if hasFilters(config.FieldByName("Interceptor")) {
		if committed, ok := config.FieldByName("OnCommitted").Interface().(func()); ok && committed != nil {
			committed() // grpc-go chooses again
		}
		to.Through = c.whole
		return to, nil
	}
	if chosen, ok := config.FieldByName("Context").Interface().(context.Context); ok && chosen != nil {
		to.Context = chosen
	}
	//lint:ignore SA1019 it is what the field has
	if method, ok := config.FieldByName("MethodConfig").Interface().(grpc.MethodConfig); ok {
		to.Method = &method
	}
	to.Committed, _ = config.FieldByName("OnCommitted").Interface().(func())
	return to, nil
}

// hasFilters reports whether the value of an Interceptor field has HTTP filters. Without any it can
// be nil or an empty list.
func hasFilters(v reflect.Value) bool {
	if v = v.Elem(); !v.IsValid() {
		return false
	}
	if v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	if v.Kind() == reflect.Struct {
		if list := v.FieldByName("interceptors"); list.IsValid() && list.Kind() == reflect.Slice {
			return list.Len() > 0
		}
	}
	return true
}
