package bootstrap

import (
	"google.golang.org/protobuf/reflect/protoreflect"
)

// merge puts a document over another, in place: as Envoy itself merges messages, so that a file that was written for its
// --config-yaml does what it did. Messages and maps merge, lists grow, single values are replaced. Beyond that, null
// takes a field away, and the entry of a list that has the name of one that is there merges into that one, where Envoy
// would have two of a name and refuse them.
func merge(into, from tree, m protoreflect.MessageDescriptor) tree {
	for key, value := range from {
		field := m.Fields().ByTextName(key)
		if value == nil || field == nil {
			mergeStruct(into, tree{key: value})
			continue
		}
		clearRivals(into, field)
		into[key] = mergeField(into[key], value, field)
	}
	return into
}

// clearRivals takes away what cannot be there beside the field.
func clearRivals(into tree, field protoreflect.FieldDescriptor) {
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

// mergePacked merges into a packed message when the type is not said again; said again, it begins anew.
func mergePacked(into, from tree) any {
	if _, anew := from[typeField]; anew {
		return from
	}
	if m := packedDescriptor(into); m != nil {
		return merge(into, from, m)
	}
	return mergeStruct(into, from)
}

// mergeStruct merges what has no schema by its first level of keys, as Envoy does: an entry is replaced as a whole.
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
		if i := namesake(into, entry, m); i >= 0 {
			into[i] = mergeMessage(into[i], entry, m)
		} else {
			into = append(into, entry)
		}
	}
	return into
}

// namesake is where the list has an entry with the name of this one, or -1.
func namesake(list []any, entry any, m protoreflect.MessageDescriptor) int {
	if m == nil || m.Fields().ByTextName("name") == nil {
		return -1
	}
	name := nameIn(entry)
	for i := range list {
		if name != "" && nameIn(list[i]) == name {
			return i
		}
	}
	return -1
}

func nameIn(entry any) string {
	object, _ := entry.(tree)
	name, _ := object["name"].(string)
	return name
}
