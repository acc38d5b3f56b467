package envoyfilter

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
)

// validate checks a message against Envoy's validation rules for its type. It also checks all messages in
// google.protobuf.Any fields within it.
func validate(m proto.Message) error {
	if v, ok := m.(interface{ Validate() error }); ok {
		if err := v.Validate(); err != nil {
			return err
		}
	}
	return validatePacked(m.ProtoReflect())
}

// validatePacked validates the messages in google.protobuf.Any fields within a message.
func validatePacked(m protoreflect.Message) error {
	var err error
	check := func(v protoreflect.Value) bool {
		inner := v.Message().Interface()
		if packed, ok := inner.(*anypb.Any); ok {
			err = validateAny(packed)
		} else {
			err = validatePacked(v.Message())
		}
		return err == nil
	}
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case fd.IsMap() && fd.MapValue().Message() != nil:
			v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool { return check(v) })
		case fd.IsMap() || fd.Message() == nil:
		case fd.IsList():
			for i := 0; i < v.List().Len() && err == nil; i++ {
				check(v.List().Get(i))
			}
		default:
			check(v)
		}
		return err == nil
	})
	return err
}

func validateAny(packed *anypb.Any) error {
	if packed.GetTypeUrl() == "" {
		return errors.New("a typed configuration has no @type")
	}
	m, err := packed.UnmarshalNew()
	if err != nil {
		return fmt.Errorf("%s: %w", packed.GetTypeUrl(), err)
	}
	return validate(m)
}
