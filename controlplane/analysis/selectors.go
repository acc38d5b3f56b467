package analysis

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	extensions "istio.io/api/extensions/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	networkingbeta "istio.io/api/networking/v1beta1"
	security "istio.io/api/security/v1beta1"
	telemetry "istio.io/api/telemetry/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
)

// selection is the selector of a document with its field.
type selection struct {
	labels map[string]string
	field  string
	// targeted: the document applies to its target references, not to labels.
	targeted bool
}

func parseSelection(r *config.Resource) (s selection, ok bool) {
	s.field = "spec.selector"
	switch spec := r.Spec.(type) {
	case *security.PeerAuthentication:
		s.labels = spec.GetSelector().GetMatchLabels()
	case *security.AuthorizationPolicy:
		s.labels, s.targeted = spec.GetSelector().GetMatchLabels(), spec.GetTargetRef() != nil || len(spec.GetTargetRefs()) > 0
	case *security.RequestAuthentication:
		s.labels, s.targeted = spec.GetSelector().GetMatchLabels(), spec.GetTargetRef() != nil || len(spec.GetTargetRefs()) > 0
	case *telemetry.Telemetry:
		s.labels, s.targeted = spec.GetSelector().GetMatchLabels(), spec.GetTargetRef() != nil || len(spec.GetTargetRefs()) > 0
	case *extensions.WasmPlugin:
		s.labels, s.targeted = spec.GetSelector().GetMatchLabels(), spec.GetTargetRef() != nil || len(spec.GetTargetRefs()) > 0
	case *networking.Sidecar:
		s.labels, s.field = spec.GetWorkloadSelector().GetLabels(), "spec.workloadSelector"
	case *networkingbeta.ProxyConfig:
		s.labels = spec.GetSelector().GetMatchLabels()
	case *networking.DestinationRule:
		s.labels, s.field = spec.GetWorkloadSelector().GetMatchLabels(), "spec.workloadSelector"
	case *networking.EnvoyFilter:
		s.labels, s.field, s.targeted = spec.GetWorkloadSelector().GetLabels(), "spec.workloadSelector", len(spec.GetTargetRefs()) > 0
	default:
		return s, false
	}
	return s, true
}

// selectingKinds are the kinds with a workload selector.
var selectingKinds = []config.Kind{
	config.PeerAuthentication, config.AuthorizationPolicy, config.RequestAuthentication, config.Telemetry, config.WasmPlugin,
	config.Sidecar, config.EnvoyFilter, config.DestinationRule, config.ProxyConfig,
}

// exclusiveKinds are the kinds of which only one document applies to each workload.
var exclusiveKinds = []config.Kind{config.PeerAuthentication, config.Sidecar, config.Telemetry, config.ProxyConfig}

// checkSelectors reports documents that select no workload, and several documents of an exclusive kind for the same
// workloads.
func (c *snapshotCheck) checkSelectors() {
	for _, kind := range selectingKinds {
		first := map[string]*config.Resource{}
		documents := config.SortByAge(c.s.Resources(kind))
		if slices.Contains(exclusiveKinds, kind) {
			c.checkOverlap(documents)
		}
		for _, r := range documents {
			s, ok := parseSelection(r)
			if !ok || s.targeted {
				continue
			}
			c.checkSelects(r, s)
			key := r.Namespace + "\x00" + config.FormatLabels(s.labels)
			if before := first[key]; before != nil && slices.Contains(exclusiveKinds, kind) {
				c.reportWarning(config.MultipleForWorkload, r, cmp.Or(labelField(s), "metadata.name"), config.FormatLabels(s.labels),
					fmt.Sprintf("%s, which %s, selects the same workloads and takes effect instead of this document", describeResource(before), config.ExplainPrecedence(before, r)), "merge the two documents, or give them different selectors")
			}
			first[key] = cmp.Or(first[key], r)
		}
	}
}

func labelField(s selection) string {
	if len(s.labels) == 0 {
		return ""
	}
	return s.field
}

func (c *snapshotCheck) checkSelects(r *config.Resource, s selection) {
	if len(s.labels) == 0 {
		return
	}
	everywhere := r.Namespace == c.s.Mesh.GetRootNamespace() && r.Kind != config.Sidecar && r.Kind != config.DestinationRule && r.Kind != config.ProxyConfig
	known := false
	for _, namespace := range c.namespacesOf(r.Namespace, everywhere) {
		found, has := c.s.Registry.Workloads(namespace, s.labels)
		if len(found) > 0 || c.mayBeSelected(namespace, s.labels) {
			return
		}
		known = known || has
	}
	for _, g := range c.s.AllGateways() {
		if canOverlap(g.Spec.GetSelector(), s.labels) {
			return // proxies of Gateways are not in the registry
		}
	}
	severity, message := config.Warning, "no workload of %s has these labels: the document has no effect"
	if !known {
		severity, message = config.Info, "no workload of %s is known, and no Service there selects workloads with these labels"
	}
	c.report(config.SelectsNothing, severity, r, s.field, config.FormatLabels(s.labels), fmt.Sprintf(message, scopeName(r.Namespace, everywhere)), "correct the labels or the namespace")
}

func scopeName(namespace string, everywhere bool) string {
	if everywhere {
		return "the mesh"
	}
	return "the namespace " + namespace
}

func (c *snapshotCheck) namespacesOf(namespace string, everywhere bool) []string {
	if !everywhere {
		return []string{namespace}
	}
	names := map[string]bool{namespace: true}
	for ns := range c.selecting {
		names[ns] = true
	}
	for _, ns := range c.s.Registry.Namespaces() {
		names[ns] = true
	}
	return slices.Sorted(maps.Keys(names))
}

// mayBeSelected reports whether a service without endpoints may select workloads with these labels. Such workloads may
// have more labels than the service's selector.
func (c *snapshotCheck) mayBeSelected(namespace string, labels map[string]string) bool {
	return slices.ContainsFunc(c.selecting[namespace], func(svc *registry.Service) bool {
		return len(c.s.Registry.Endpoints(svc)) == 0 && !areDisjoint(svc.Selector, labels)
	})
}

// canOverlap reports whether the selectors have a common label and a workload can match both of them.
func canOverlap(a, b map[string]string) bool {
	common := false
	for k, v := range a {
		if w, ok := b[k]; ok {
			if v != w {
				return false
			}
			common = true
		}
	}
	return common
}

// servicesOf returns the services of a namespace whose workloads may have the labels. If labels is empty, it returns
// all services of the namespace that have a selector.
func (c *snapshotCheck) servicesOf(namespace string, labels map[string]string) []*registry.Service {
	if len(labels) == 0 {
		return c.selecting[namespace]
	}
	if c.byLabel == nil {
		c.indexSelectors()
	}
	var out []*registry.Service
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		for _, svc := range c.byLabel[labelKey{namespace, key, labels[key]}] {
			if canOverlap(svc.Selector, labels) && !slices.Contains(out, svc) {
				out = append(out, svc)
			}
		}
	}
	return out
}

// labelKey is one label in the selector of a service.
type labelKey struct{ namespace, key, value string }

func (c *snapshotCheck) indexSelectors() {
	c.byLabel = map[labelKey][]*registry.Service{}
	for namespace, services := range c.selecting {
		for _, svc := range services {
			for k, v := range svc.Selector {
				at := labelKey{namespace, k, v}
				c.byLabel[at] = append(c.byLabel[at], svc)
			}
		}
	}
}

// checkWorkloadPort reports a port in a policy that is the port of a service, but not a port on which the service's
// workloads listen.
func (c *snapshotCheck) checkWorkloadPort(r *config.Resource, labels map[string]string, field string, port uint32) {
	services := c.servicesOf(r.Namespace, labels)
	var target uint32
	for _, svc := range services {
		for _, p := range svc.Ports {
			switch {
			case p.TargetPort == port || p.TargetPortName != "" || p.TargetPort == 0 && p.Number == port:
				return
			case p.Number == port:
				target = p.TargetPort
			}
		}
	}
	if target != 0 {
		c.reportWarning(config.PortNotServed, r, field, fmt.Sprint(port), "this is the port of a service, but policies apply to ports of workloads, and no selected workload serves it",
			fmt.Sprintf("use %d, the port on which the workloads listen", target))
	}
}

func (c *snapshotCheck) checkIdentities(p snapshot.Policy) {
	for i, rule := range p.Spec.GetRules() {
		for j, from := range rule.GetFrom() {
			at := fmt.Sprintf("spec.rules[%d].from[%d].source", i, j)
			for k, namespace := range from.GetSource().GetNamespaces() {
				if !strings.Contains(namespace, "*") && !c.knownNamespace(namespace) {
					c.report(config.UnknownIdentity, config.Info, p.Resource, fmt.Sprintf("%s.namespaces[%d]", at, k), namespace,
						"the namespace has no known workload, service or document, so no caller matches", "correct the namespace")
				}
			}
			for k, principal := range from.GetSource().GetPrincipals() {
				c.checkPrincipal(p, fmt.Sprintf("%s.principals[%d]", at, k), principal)
			}
		}
	}
}

func (c *snapshotCheck) checkPrincipal(p snapshot.Policy, field, principal string) {
	if strings.Contains(principal, "*") {
		return
	}
	parts := strings.Split(principal, "/")
	switch {
	case len(parts) != 5 || parts[1] != "ns" || parts[3] != "sa":
		c.reportWarning(config.UnknownIdentity, p.Resource, field, principal, "no caller has a principal of this form",
			"write it as TRUST-DOMAIN/ns/NAMESPACE/sa/SERVICE-ACCOUNT, without spiffe://")
	case !c.knownNamespace(parts[2]):
		c.report(config.UnknownIdentity, config.Info, p.Resource, field, principal, fmt.Sprintf("the namespace %s has no known workload, service or document, so no caller matches", parts[2]),
			"correct the namespace")
	}
}

func (c *snapshotCheck) knownNamespace(namespace string) bool {
	if c.namespaces == nil {
		c.namespaces = map[string]bool{c.s.Mesh.GetRootNamespace(): true}
		for _, svc := range c.s.Registry.Services {
			c.namespaces[svc.Namespace] = true
		}
		for _, ns := range c.s.Registry.Namespaces() {
			c.namespaces[ns] = true
		}
		for r := range c.s.Rules() {
			c.namespaces[r.Namespace] = true
		}
	}
	return c.namespaces[namespace]
}
