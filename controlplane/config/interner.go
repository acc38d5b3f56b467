package config

import (
	"hash/maphash"
	"maps"
	"slices"
	"strings"
)

// Interner returns shared copies of equal strings, label sets and ports, so that the pods of one workload share them.
// It is not safe for concurrent use.
type Interner struct {
	seed    maphash.Seed
	strings map[string]string
	labels  map[uint64][]map[string]string
	ports   map[string][]PodPort
	size    int
}

// maxInterned limits the values that an Interner remembers. At the limit it forgets all of them: values in use remain
// valid, and later values share new copies.
const maxInterned = 100_000

// NewInterner returns an empty Interner.
func NewInterner() *Interner {
	in := &Interner{seed: maphash.MakeSeed()}
	in.reset()
	return in
}

func (in *Interner) reset() {
	in.strings, in.labels, in.ports, in.size = map[string]string{}, map[uint64][]map[string]string{}, map[string][]PodPort{}, 0
}

func (in *Interner) grow() {
	if in.size++; in.size > maxInterned {
		in.reset()
	}
}

// InternString returns the shared copy of s. The copy does not refer to the memory of s.
func (in *Interner) InternString(s string) string {
	if s == "" {
		return ""
	}
	if shared, ok := in.strings[s]; ok {
		return shared
	}
	in.grow()
	s = strings.Clone(s)
	in.strings[s] = s
	return s
}

// InternLabels returns the shared copy of labels, which must not be modified. It returns nil if labels is empty.
func (in *Interner) InternLabels(labels map[string]string) map[string]string {
	if len(labels) == 0 {
		return nil
	}
	sum := uint64(0)
	for k, v := range labels {
		sum += maphash.Comparable(in.seed, label{k, v})
	}
	for _, known := range in.labels[sum] {
		if maps.Equal(known, labels) {
			return known
		}
	}
	in.grow()
	shared := make(map[string]string, len(labels))
	for k, v := range labels {
		shared[in.InternString(k)] = in.InternString(v)
	}
	in.labels[sum] = append(in.labels[sum], shared)
	return shared
}

type label struct{ key, value string }

// InternPorts returns the shared copy of ports, which must not be modified. It returns nil if ports is empty.
func (in *Interner) InternPorts(ports []PodPort) []PodPort {
	if len(ports) == 0 {
		return nil
	}
	var key strings.Builder
	for _, p := range ports {
		key.WriteString(p.Name)
		key.WriteRune(rune(p.Number))
	}
	if known, ok := in.ports[key.String()]; ok && slices.Equal(known, ports) {
		return known
	}
	in.grow()
	shared := make([]PodPort, len(ports))
	for i, p := range ports {
		shared[i] = PodPort{Name: in.InternString(p.Name), Number: p.Number}
	}
	in.ports[key.String()] = shared
	return shared
}
