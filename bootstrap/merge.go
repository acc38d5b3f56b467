package bootstrap

import (
	"google.golang.org/protobuf/reflect/protoreflect"
)

// merge merges from into the document into, in place. It merges as Envoy merges --config-yaml: messages and maps are
// merged, lists are appended to, single values are replaced. There are two additions: null removes a field, and a list
// entry is merged into an existing entry of the same name. Envoy would reject the duplicate name.
func merge(into, from tree, m protoreflect.MessageDescriptor) tree {
	for key, value := range from {
		field := m.Fields().ByTextName(key)
		if value == nil || field == nil {
			mergeStruct(into, tree{key: value})
			continue
		}
		clearOtherOneofFields(into, field)
		into[key] = mergeField(into[key], value, field)
	}
	return into
}

// clearOtherOneofFields removes the other members of the field's oneof.
func clearOtherOneofFields(into tree, field protoreflect.FieldDescriptor) {
	one := field.ContainingOneof()
	if one == nil {
		return
	}
	for i := range one.Fields().Len() {
		if rival := one.Fields().Get(i); rival != field {
			delete(into, rival.TextName())
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
	into, ok := old.(tree)
	from, both := value.(tree)
	if !ok || !both {
		return value
	}
	switch m.FullName() {
	case "google.protobuf.Any":
		return mergePacked(into, from)
	case "google.protobuf.Struct":
		return mergeStruct(into, from)
	}
	return merge(into, from, m)
}

// mergePacked merges from into a packed message. If from contains the type URL, it replaces the packed message.
func mergePacked(into, from tree) any {
	if _, anew := from[typeField]; anew {
		return from
	}
	if m := packedDescriptor(into); m != nil {
		return merge(into, from, m)
	}
	return mergeStruct(into, from)
}

// mergeStruct merges the top-level keys of objects without a schema. As in Envoy, it replaces each value as a whole.
// null removes the key.
func mergeStruct(into, from tree) tree {
	for key, value := range from {
		if value == nil {
			delete(into, key)
		} else {
			into[key] = value
		}
	}
	return into
}

func mergeEntries(old, value any) any {
	into, ok := old.(tree)
	from, both := value.(tree)
	if !ok || !both {
		return value
	}
	return mergeStruct(into, from)
}

func mergeList(old, value any, m protoreflect.MessageDescriptor) any {
	into, ok := old.([]any)
	from, both := value.([]any)
	if !ok || !both {
		return value
	}
	for _, entry := range from {
		if i := indexOfSameName(into, entry, m); i >= 0 {
			into[i] = mergeMessage(into[i], entry, m)
		} else {
			into = append(into, entry)
		}
	}
	return into
}

// indexOfSameName returns the index of the list's entry with the same name, or -1.
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
