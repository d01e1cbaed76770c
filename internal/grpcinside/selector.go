package grpcinside

import (
	"context"
	"reflect"

	"google.golang.org/grpc"
	"google.golang.org/grpc/attributes"
	"google.golang.org/grpc/resolver"
)

// A Selector is a config selector, which the resolver of xDS passes with its results. It chooses the
// cluster, the timeout and the retries of each call by the routes of the control plane. grpc-go's
// function that gets it out of a result is internal, and so are its types.
type Selector struct {
	selectConfig reflect.Value // the method SelectConfig; zero if it is not known
	info         reflect.Type  // that method's parameter
}

// A Choice is what a Selector chooses for a call.
type Choice struct {
	Context context.Context // nil for the call's own
	//lint:ignore SA1019 it is what the field has
	Method    *grpc.MethodConfig // nil if there is none
	Committed func()             // called when no more attempts are made; may be nil
	Filters   bool               // the call has HTTP filters, which only grpc-go applies
}

// The fields that this package knows. A further one may be a rule that applies to calls.
var (
	infoFields   = fields{"Context": reflect.TypeFor[context.Context](), "Method": reflect.TypeFor[string](), "Authority": reflect.TypeFor[string]()}
	configFields = fields{
		"Context": reflect.TypeFor[context.Context](),
		//lint:ignore SA1019 it is what the field has
		"MethodConfig": reflect.TypeFor[grpc.MethodConfig](),
		"OnCommitted":  reflect.TypeFor[func()](), "Interceptor": reflect.TypeFor[any](),
	}
	attributeFields = fields{"parent": reflect.TypeFor[*attributes.Attributes](), "key": reflect.TypeFor[any](), "value": reflect.TypeFor[any]()}
)

type fields map[string]reflect.Type

// are reports whether t is a struct with these fields and no others.
func (fs fields) are(t reflect.Type) bool {
	if t.Kind() != reflect.Struct || t.NumField() != len(fs) {
		return false
	}
	for name, want := range fs {
		if f, ok := t.FieldByName(name); !ok || f.Type != want {
			return false
		}
	}
	return true
}

func init() { ConfigSelector.check(attributeFields.are(reflect.TypeFor[attributes.Attributes]())) }

// SelectorOf returns the config selector of a resolver's result, or nil if there is none.
func SelectorOf(s resolver.State) *Selector {
	if s.Attributes == nil {
		return nil
	}
	if !ConfigSelector.Found() {
		return new(Selector) // there may be one
	}
	const key, method = "grpc.internal.resolver.configSelector", "SelectConfig"
	for a := reflect.ValueOf(s.Attributes); !a.IsNil(); a = a.Elem().FieldByName("parent") {
		k, v := a.Elem().FieldByName("key").Elem(), a.Elem().FieldByName("value")
		_, selects := typeIn(v).MethodByName(method)
		if !selects && (k.Kind() != reflect.String || k.String() != key) {
			continue
		}
		choose := reflect.NewAt(v.Type(), v.Addr().UnsafePointer()).Elem().Elem().MethodByName(method)
		if !choose.IsValid() {
			return new(Selector)
		}
		t := choose.Type()
		if t.NumIn() != 1 || t.NumOut() != 2 || !infoFields.are(t.In(0)) || t.Out(0).Kind() != reflect.Pointer ||
			!configFields.are(t.Out(0).Elem()) || t.Out(1) != reflect.TypeFor[error]() {
			return new(Selector)
		}
		return &Selector{choose, t.In(0)}
	}
	return nil
}

// typeIn returns the type of the value in the interface v.
func typeIn(v reflect.Value) reflect.Type {
	if v.IsNil() {
		return reflect.TypeFor[struct{}]()
	}
	return v.Elem().Type()
}

// Known reports whether Choose can be called. Otherwise only grpc-go can ask the selector.
func (s *Selector) Known() bool { return s.selectConfig.IsValid() }

// Choose asks the selector which config applies to a call.
func (s *Selector) Choose(ctx context.Context, method, authority string) (Choice, error) {
	info := reflect.New(s.info).Elem()
	info.FieldByName("Context").Set(reflect.ValueOf(ctx))
	info.FieldByName("Method").SetString(method)
	info.FieldByName("Authority").SetString(authority)
	results := s.selectConfig.Call([]reflect.Value{info})
	if err, _ := results[1].Interface().(error); err != nil || results[0].IsNil() {
		return Choice{}, err
	}
	config := results[0].Elem()
	var c Choice
	c.Context, _ = config.FieldByName("Context").Interface().(context.Context)
	//lint:ignore SA1019 it is what the field has
	if m, ok := config.FieldByName("MethodConfig").Interface().(grpc.MethodConfig); ok {
		c.Method = &m
	}
	c.Committed, _ = config.FieldByName("OnCommitted").Interface().(func())
	c.Filters = hasFilters(config.FieldByName("Interceptor"))
	return c, nil
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
