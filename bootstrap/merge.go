package bootstrap

import (
	"google.golang.org/protobuf/reflect/protoreflect"
)

// merge merges change into base and returns base. It merges as Envoy merges --config-yaml: messages and maps are
// merged, items are appended to lists, and single values are replaced. There are two additions. null removes a field. A
// list entry is merged with an existing entry of the same name, because Envoy would reject the duplicate name.
func merge(base, change tree, m protoreflect.MessageDescriptor) tree {
	for key, value := range change {
		field := m.Fields().ByTextName(key)
		if value == nil || field == nil {
			mergeStruct(base, tree{key: value})
			continue
		}
		clearOtherOneofFields(base, field)
		base[key] = mergeField(base[key], value, field)
	}
	return base
}

// clearOtherOneofFields removes the other members of the field's oneof.
func clearOtherOneofFields(base tree, field protoreflect.FieldDescriptor) {
	one := field.ContainingOneof()
	if one == nil {
		return
	}
	for i := range one.Fields().Len() {
		if rival := one.Fields().Get(i); rival != field {
			delete(base, rival.TextName())
		}
	}
}

func mergeField(old, value any, field protoreflect.FieldDescriptor) any {
	switch {
	case field.IsList():
		return mergeList(old, value, field.Message())
	case field.IsMap():
		return mergeEntries(old, value)
	case field.Message() != nil:
		return mergeMessage(old, value, field.Message())
	}
	return value
}

func mergeMessage(old, value any, m protoreflect.MessageDescriptor) any {
	base, ok := old.(tree)
	change, both := value.(tree)
	if !ok || !both {
		return value
	}
	switch m.FullName() {
	case "google.protobuf.Any":
		return mergePacked(base, change)
	case "google.protobuf.Struct":
		return mergeStruct(base, change)
	}
	return merge(base, change, m)
}

// mergePacked merges change into base, a message in an Any. If change contains a type URL, it replaces base.
func mergePacked(base, change tree) any {
	if _, hasType := change[typeField]; hasType {
		return change
	}
	if m := packedDescriptor(base); m != nil {
		return merge(base, change, m)
	}
	return mergeStruct(base, change)
}

// mergeStruct merges objects without a schema by their top-level keys. Like Envoy, it replaces the value of a key, even
// if the value is an object. null removes the key.
func mergeStruct(base, change tree) tree {
	for key, value := range change {
		if value == nil {
			delete(base, key)
		} else {
			base[key] = value
		}
	}
	return base
}

func mergeEntries(old, value any) any {
	base, ok := old.(tree)
	change, both := value.(tree)
	if !ok || !both {
		return value
	}
	return mergeStruct(base, change)
}

func mergeList(old, value any, m protoreflect.MessageDescriptor) any {
	base, ok := old.([]any)
	change, both := value.([]any)
	if !ok || !both {
		return value
	}
	for _, entry := range change {
		if i := indexOfSameName(base, entry, m); i >= 0 {
			base[i] = mergeMessage(base[i], entry, m)
		} else {
			base = append(base, entry)
		}
	}
	return base
}

// indexOfSameName returns the index of the element of list that has the same name as entry. It returns -1 if there is
// none, or if the type m has no name field.
func indexOfSameName(list []any, entry any, m protoreflect.MessageDescriptor) int {
	if m == nil || m.Fields().ByTextName("name") == nil {
		return -1
	}
	name := entryName(entry)
	for i := range list {
		if name != "" && entryName(list[i]) == name {
			return i
		}
	}
	return -1
}

func entryName(entry any) string {
	object, _ := entry.(tree)
	name, _ := object["name"].(string)
	return name
}
