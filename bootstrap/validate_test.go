package bootstrap

import (
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protopath"
	"google.golang.org/protobuf/reflect/protorange"
)

// validateAll validates a message and its packed messages with the validation rules of Envoy's API.
func validateAll(m proto.Message) error {
	type validated interface{ ValidateAll() error }
	if v, ok := m.(validated); ok {
		if err := v.ValidateAll(); err != nil {
			return err
		}
	}
	return protorange.Range(m.ProtoReflect(), func(p protopath.Values) error {
		last := p.Index(-1)
		if last.Step.Kind() != protopath.AnyExpandStep {
			return nil
		}
		if v, ok := last.Value.Message().Interface().(validated); ok {
			return v.ValidateAll()
		}
		return nil
	})
}
