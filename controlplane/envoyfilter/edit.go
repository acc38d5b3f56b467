package envoyfilter

import (
	"errors"
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	networking "istio.io/api/networking/v1alpha3"
)

// element is a filter of some sort, or a route: what has a name and stands in a list whose order matters.
type element interface {
	proto.Message
	GetName() string
}

// typed is an element whose configuration is packed.
type typed interface {
	GetTypedConfig() *anypb.Any
}

// edit applies a patch to a list. named says which elements are meant; anchored is false when the patch names none. last
// says of an element that nothing may come behind it.
func edit[E element](list []E, p *patch, anchored bool, named, last func(E) bool) ([]E, bool, error) {
	switch p.op {
	case networking.EnvoyFilter_Patch_REMOVE:
		out := slices.DeleteFunc(slices.Clone(list), func(e E) bool { return anchored && named(e) })
		return out, len(out) != len(list), nil
	case networking.EnvoyFilter_Patch_MERGE:
		return mergeInto(list, p, anchored, named)
	}
	at := place(list, p, anchored, named, last)
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

// place is where in a list an element goes; -1 when what the patch names is not there.
func place[E element](list []E, p *patch, anchored bool, named, last func(E) bool) int {
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
	// At the end, but before what has to stay there.
	if n := len(list); n > 0 && last(list[n-1]) && !last(p.value.(E)) {
		return n - 1
	}
	return len(list)
}

// mergeInto merges the patch into the elements that it names. One that names none is for those that its value names, or
// else for those of its value's type.
func mergeInto[E element](list []E, p *patch, anchored bool, named func(E) bool) ([]E, bool, error) {
	value := p.value.(E)
	if !anchored {
		named = func(e E) bool {
			if value.GetName() != "" {
				return e.GetName() == value.GetName()
			}
			return packedType(e) != "" && packedType(e) == packedType(value)
		}
	}
	out, changed := slices.Clone(list), false
	for i, e := range out {
		if !named(e) {
			continue
		}
		if want, got := packedType(value), packedType(e); want != "" && got != "" && want != got {
			return list, false, errors.New("it has the type " + got + ", and not " + want)
		}
		merged := proto.Clone(e)
		merge(merged, value)
		out[i], changed = merged.(E), true
	}
	return out, changed, nil
}

func packedType(e any) string {
	if t, ok := e.(typed); ok {
		return t.GetTypedConfig().GetTypeUrl()
	}
	return ""
}
