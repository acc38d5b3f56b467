package kube

import (
	"slices"
	"sync"

	"google.golang.org/protobuf/proto"
	meshconfig "istio.io/api/mesh/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// selection is the set of namespaces whose objects the control plane reads: those that one of the discoverySelectors of
// the mesh configuration selects, or all if there are none.
type selection struct {
	mu         sync.Mutex
	configured []*meshconfig.LabelSelector
	selectors  []labels.Selector
	namespaces map[string]map[string]string // labels of the namespaces
}

func newSelection() *selection { return &selection{namespaces: map[string]map[string]string{}} }

// selects reports whether the objects of a namespace are selected. If there are selectors and the namespace is unknown,
// known is false.
func (s *selection) selects(namespace string) (selected, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.configured) == 0 {
		return true, true
	}
	set, known := s.namespaces[namespace]
	return known && s.matches(set), known
}

func (s *selection) matches(set map[string]string) bool {
	return len(s.configured) == 0 || slices.ContainsFunc(s.selectors, func(selector labels.Selector) bool { return selector.Matches(labels.Set(set)) })
}

// setNamespace records the labels of a namespace. changed reports whether the selection of its objects may differ, and
// added whether a known namespace is selected now and was not before.
func (s *selection) setNamespace(name string, set map[string]string) (changed, added bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, known := s.namespaces[name]
	s.namespaces[name] = set
	before, now := known && s.matches(old), s.matches(set)
	return len(s.configured) > 0 && (!known || before != now), known && !before && now
}

// removeNamespace forgets a namespace. Kubernetes deletes its objects first.
func (s *selection) removeNamespace(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.namespaces, name)
}

// setSelectors sets the selectors. It ignores those that are invalid and returns their errors. changed reports whether
// the selectors differ from the previous ones.
func (s *selection) setSelectors(configured []*meshconfig.LabelSelector) (changed bool, invalid []error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.EqualFunc(s.configured, configured, func(a, b *meshconfig.LabelSelector) bool { return proto.Equal(a, b) }) {
		return false, nil
	}
	s.configured, s.selectors = configured, nil
	for _, c := range configured {
		selector, err := convertSelector(c)
		if err != nil {
			invalid = append(invalid, err)
			continue
		}
		s.selectors = append(s.selectors, selector)
	}
	return true, invalid
}

func convertSelector(in *meshconfig.LabelSelector) (labels.Selector, error) {
	out := &metav1.LabelSelector{MatchLabels: in.GetMatchLabels()}
	for _, e := range in.GetMatchExpressions() {
		out.MatchExpressions = append(out.MatchExpressions, metav1.LabelSelectorRequirement{Key: e.GetKey(), Operator: metav1.LabelSelectorOperator(e.GetOperator()), Values: e.GetValues()})
	}
	return metav1.LabelSelectorAsSelector(out)
}
