package envoyfilter

import (
	"errors"
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	networking "istio.io/api/networking/v1alpha3"
)

// element is a filter or a route: a named item of an ordered list.
type element interface {
	proto.Message
	GetName() string
}

// typedElement is an element whose configuration is in a google.protobuf.Any field.
type typedElement interface {
	GetTypedConfig() *anypb.Any
}

// editList applies a patch to a list, and reports whether the list has changed. named reports whether the patch refers
// to an element by name; anchored is false if the patch contains no such name. last reports whether an element must be
// the last one of the list.
func editList[E element](list []E, p *patch, anchored bool, named, last func(E) bool) ([]E, bool, error) {
	switch p.op {
	case networking.EnvoyFilter_Patch_REMOVE:
		out := slices.DeleteFunc(slices.Clone(list), func(e E) bool { return anchored && named(e) })
		return out, len(out) != len(list), nil
	case networking.EnvoyFilter_Patch_MERGE, networking.EnvoyFilter_Patch_MERGE_AND_REPLACE_LIST:
		return mergeElements(list, p, anchored, named)
	}
	at := insertIndex(list, p, anchored, named, last)
	if at < 0 {
		return list, false, nil
	}
	value := proto.Clone(p.value).(E)
	if p.op == networking.EnvoyFilter_Patch_REPLACE {
		out := slices.Clone(list)
		out[at] = value
		return out, true, nil
	}
	return slices.Insert(slices.Clone(list), at, value), true, nil
}

// insertIndex returns the index at which a patch inserts or replaces an element. It returns -1 if the patch refers to
// an element that does not exist.
func insertIndex[E element](list []E, p *patch, anchored bool, named, last func(E) bool) int {
	found := -1
	if anchored {
		found = slices.IndexFunc(list, named)
	}
	switch p.op {
	case networking.EnvoyFilter_Patch_INSERT_FIRST:
		return 0
	case networking.EnvoyFilter_Patch_INSERT_BEFORE:
		if !anchored {
			return 0
		}
		return found
	case networking.EnvoyFilter_Patch_INSERT_AFTER:
		if anchored {
			if found < 0 {
				return -1
			}
			return found + 1
		}
	case networking.EnvoyFilter_Patch_REPLACE:
		return found
	}
	// Append the element. If the last element must remain the last one, insert the new element before it.
	if n := len(list); n > 0 && last(list[n-1]) && !last(p.value.(E)) {
		return n - 1
	}
	return len(list)
}

// mergeElements merges the value of the patch into the elements to which the patch refers. If the patch refers to none,
// it merges the value into elements that have the same name as the value. If the value has no name, it merges the value
// into elements of the same type.
func mergeElements[E element](list []E, p *patch, anchored bool, named func(E) bool) ([]E, bool, error) {
	value := p.value.(E)
	if !anchored {
		named = func(e E) bool {
			if value.GetName() != "" {
				return e.GetName() == value.GetName()
			}
			return packedTypeURL(e) != "" && packedTypeURL(e) == packedTypeURL(value)
		}
	}
	out, changed := slices.Clone(list), false
	for i, e := range out {
		if !named(e) {
			continue
		}
		if want, got := packedTypeURL(value), packedTypeURL(e); want != "" && got != "" && want != got {
			return list, false, errors.New("the element has the type " + got + ", not " + want)
		}
		merged := proto.Clone(e)
		p.merge(merged, value)
		out[i], changed = merged.(E), true
	}
	return out, changed, nil
}

func packedTypeURL(e any) string {
	if t, ok := e.(typedElement); ok {
		return t.GetTypedConfig().GetTypeUrl()
	}
	return ""
}
