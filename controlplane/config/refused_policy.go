package config

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/proto"
	security "istio.io/api/security/v1beta1"
	typev1beta1 "istio.io/api/type/v1beta1"

	"github.com/pilotfish-mesh/pilotfish/internal/suggest"
)

// OnInvalidPolicy selects the effect of a refused policy of which no version was ever accepted. The zero value means
// DenyInvalid. *OnInvalidPolicy implements pflag.Value.
type OnInvalidPolicy string

const (
	// DenyInvalid denies all traffic to the workloads that the policy selects, until a version of the policy is
	// accepted.
	DenyInvalid OnInvalidPolicy = "deny"
	// IgnoreInvalid ignores the policy, which then protects nothing.
	IgnoreInvalid OnInvalidPolicy = "ignore"
)

// String returns the effective value.
func (o *OnInvalidPolicy) String() string { return string(cmp.Or(*o, DenyInvalid)) }

// Set parses the value of a flag.
func (o *OnInvalidPolicy) Set(text string) error {
	value := OnInvalidPolicy(text)
	if value != DenyInvalid && value != IgnoreInvalid {
		return fmt.Errorf("use %s or %s", DenyInvalid, IgnoreInvalid)
	}
	*o = value
	return nil
}

// Type returns the placeholder of the flag's value in the help text.
func (o *OnInvalidPolicy) Type() string { return string(DenyInvalid + "|" + IgnoreInvalid) }

// DryRunAnnotation, with the value "true", marks an AuthorizationPolicy whose matches Envoy counts and logs, but does
// not enforce.
const DryRunAnnotation = "istio.io/dry-run"

// RefusedPolicy is an AuthorizationPolicy or a PeerAuthentication with an error.
type RefusedPolicy struct {
	problem Problem // the first error of the document
	// Denial is a policy that denies all traffic to the selected workloads. It is nil if the selection cannot be read,
	// or if the policy selects nothing here; undeniable is then the reason.
	Denial     *Resource
	undeniable string
	Key        Key // of the document, with a generated name if the document's name is invalid
}

// readRefusedPolicy reads which workloads a refused document would protect. It returns nil if the document is not a
// policy, or is a policy that denies nothing.
func (d *document) readRefusedPolicy(root *yaml.Node, defaultNamespace string) *RefusedPolicy {
	at := slices.IndexFunc(d.problems, func(p Problem) bool { return p.Severity == Error })
	if at < 0 || root.Kind != yaml.MappingNode {
		return nil
	}
	r := policyReader{document{file: d.file, offset: d.offset, positions: map[string]Position{}}}
	h := r.readHeader(root, defaultNamespace)
	if r.key.Kind != AuthorizationPolicy && r.key.Kind != PeerAuthentication || onlyObserves(h) {
		return nil
	}
	p, origin := &RefusedPolicy{problem: d.problems[at], Key: r.key}, r.origin
	p.problem.Key = r.key
	if !dnsSubdomain.MatchString(p.Key.Name) || len(p.Key.Name) > 253 {
		hash := fnv.New32a()
		fmt.Fprint(hash, origin)
		p.Key.Name = fmt.Sprintf("refused-%08x", hash.Sum32())
	}
	if p.undeniable = r.misplacedField(h); p.undeniable != "" {
		return p
	}
	created, _ := time.Parse(time.RFC3339, scalarOf(h.metadata, "creationTimestamp"))
	spec := r.readTargets(h.spec)
	if r.refused {
		p.undeniable = fmt.Sprintf("its selector or targets cannot be read (%s)", r.problems[0].Field)
		return p
	}
	if p.undeniable = describeUnsupportedTargets(spec); p.undeniable != "" {
		return p
	}
	p.Denial = &Resource{Key: p.Key, APIVersion: securityGroup + "/v1", Created: created, Origin: origin, Denial: true, Spec: denyAll(spec)}
	return p
}

// onlyObserves reports whether a document is an AuthorizationPolicy that never denies anything.
func onlyObserves(h objectHeader) bool {
	if h.kind != string(AuthorizationPolicy) {
		return false
	}
	annotations := mappingField(h.metadata, "annotations")
	return scalarOf(h.spec, "action") == security.AuthorizationPolicy_AUDIT.String() ||
		strings.EqualFold(scalarOf(annotations, DryRunAnnotation), "true")
}

func scalarOf(mapping *yaml.Node, name string) string {
	if mapping == nil || mapping.Kind != yaml.MappingNode {
		return ""
	}
	return scalarField(mapping, name)
}

// mappingField returns the value of the field called name, or nil if mapping is not a mapping or has no such field.
func mappingField(mapping *yaml.Node, name string) *yaml.Node {
	if mapping == nil || mapping.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if mapping.Content[i].Value == name {
			return followAlias(mapping.Content[i+1])
		}
	}
	return nil
}

// policyReader reads the parts of a refused policy that identify its workloads.
type policyReader struct{ document }

// misplacedField reports that the policy may be meant for other workloads than it selects as read, because a field for
// the namespace or the selector is misspelt or misplaced. It returns the reason, or "" if there is no such field.
func (r *policyReader) misplacedField(h objectHeader) string {
	namespace := mappingField(h.metadata, "namespace")
	switch {
	case h.metadata == nil || h.metadata.Kind != yaml.MappingNode:
		return "it has no metadata"
	case namespace != nil && namespace.Kind != yaml.ScalarNode, !dnsLabel.MatchString(r.key.Namespace):
		return "its namespace cannot be read"
	}
	for _, name := range keysOf(h.metadata) {
		if name != "namespace" && suggest.Name(name, []string{"namespace"}) != "" {
			return fmt.Sprintf("its namespace cannot be read (metadata.%s)", name)
		}
	}
	for _, name := range keysOf(h.root) {
		if suggest.Name(name, []string{"namespace"}) != "" {
			return fmt.Sprintf("its namespace cannot be read (%s)", name)
		}
	}
	fields := keysOf(h.spec)
	if slices.ContainsFunc(fields, r.selects) {
		return ""
	}
	for _, name := range slices.Concat(fields, keysOf(h.root)) {
		if mayMeanSelector(name) {
			return fmt.Sprintf("its selector or targets cannot be read (%s)", name)
		}
	}
	return ""
}

func keysOf(mapping *yaml.Node) []string {
	var names []string
	for i := 0; mapping != nil && mapping.Kind == yaml.MappingNode && i+1 < len(mapping.Content); i += 2 {
		names = append(names, followAlias(mapping.Content[i]).Value)
	}
	return names
}

// selects reports whether the spec's field called name selects workloads.
func (r *policyReader) selects(name string) bool {
	field := fieldNamed(kinds[r.key.Kind].message.Descriptor(), name)
	return field != nil && contains([]string{"selector", "targetRef", "targetRefs"}, field.JSONName())
}

// mayMeanSelector reports whether an unknown field may be a misspelt or misplaced selector.
func mayMeanSelector(name string) bool {
	name = strings.ToLower(name)
	return suggest.Name(name, []string{"selector", "targetref", "targetrefs"}) != "" ||
		slices.ContainsFunc([]string{"select", "target", "label", "match", "workload"}, func(part string) bool { return strings.Contains(name, part) })
}

// readTargets reads only those fields of spec that select workloads.
func (r *policyReader) readTargets(spec *yaml.Node) proto.Message {
	m := kinds[r.key.Kind].message.New()
	if spec == nil || isNull(spec) {
		return m.Interface()
	}
	w := specDecoder{document: &r.document}
	if !r.isMapping(spec, "spec") {
		return m.Interface()
	}
	targets := &yaml.Node{Kind: yaml.MappingNode, Line: spec.Line, Column: spec.Column}
	for i := 0; i+1 < len(spec.Content); i += 2 {
		if key := spec.Content[i]; r.selects(followAlias(key).Value) {
			targets.Content = append(targets.Content, key, spec.Content[i+1])
		}
	}
	if !r.checkSize(targets) {
		return m.Interface()
	}
	w.message(targets, m, "spec")
	switch p := m.Interface().(type) {
	case *security.PeerAuthentication:
		validator{&r.document, "spec"}.field("selector").checkSelector(p.GetSelector())
	case *security.AuthorizationPolicy:
		validator{&r.document, "spec"}.field("selector").checkSelector(p.GetSelector())
		validator{&r.document, "spec"}.checkTargets(p.GetSelector(), p.GetTargetRef(), p.GetTargetRefs())
	}
	return m.Interface()
}

// describeUnsupportedTargets returns the reason why an AuthorizationPolicy selects nothing: it has targets, but none of
// them is a Gateway. It returns "" for other policies.
func describeUnsupportedTargets(spec proto.Message) string {
	policy, ok := spec.(*security.AuthorizationPolicy)
	if !ok {
		return ""
	}
	refs := PolicyTargets(policy)
	if len(refs) == 0 || slices.ContainsFunc(refs, TargetsGateway) {
		return ""
	}
	return fmt.Sprintf("its target is a %s, but this mesh has no waypoints: only a Gateway of gateway.networking.k8s.io can be a target", refs[0].GetKind())
}

// TargetingSpec is a spec whose target references select workloads.
type TargetingSpec interface {
	GetTargetRef() *typev1beta1.PolicyTargetReference
	GetTargetRefs() []*typev1beta1.PolicyTargetReference
}

// PolicyTargets returns the target references of p: targetRefs, followed by targetRef if it is set.
func PolicyTargets(p TargetingSpec) []*typev1beta1.PolicyTargetReference {
	refs := p.GetTargetRefs()
	if ref := p.GetTargetRef(); ref != nil {
		refs = append(refs[:len(refs):len(refs)], ref)
	}
	return refs
}

// TargetsGateway reports whether a policy's target is a Gateway of the Gateway API. Services and GatewayClasses are
// targets of waypoints, which this control plane does not support.
func TargetsGateway(ref *typev1beta1.PolicyTargetReference) bool {
	return ref.GetKind() == "Gateway" && ref.GetGroup() == "gateway.networking.k8s.io" && ref.GetName() != ""
}

// denyAll changes spec, which only selects workloads, into a policy that denies all requests to them. A
// PeerAuthentication then denies plaintext connections.
func denyAll(spec proto.Message) proto.Message {
	switch p := spec.(type) {
	case *security.PeerAuthentication:
		p.Mtls = &security.PeerAuthentication_MutualTLS{Mode: security.PeerAuthentication_MutualTLS_STRICT}
	case *security.AuthorizationPolicy:
		p.Action, p.Rules = security.AuthorizationPolicy_DENY, []*security.Rule{{}}
	}
	return spec
}

// NewProblem returns the finding for a policy of which no version was accepted. inForce is true if the policy's Denial
// is in force.
func (p *RefusedPolicy) NewProblem(on OnInvalidPolicy, inForce bool) Problem {
	out := p.problem
	out.Code, out.Value = PolicyNeverAccepted, ""
	const never = "no version of this policy was accepted, "
	switch {
	case inForce:
		out.Message = never + "so " + p.describeDenial()
		out.Remedy = "correct the field; --on-invalid-policy=ignore leaves the workloads open instead"
	case p.Denial == nil:
		out.Message = never + "and it protects nothing: " + p.undeniable
		out.Remedy = "correct the document"
	case on == IgnoreInvalid:
		out.Message = never + "and it protects nothing: --on-invalid-policy=ignore is set"
		out.Remedy = "correct the field; with --on-invalid-policy=deny, requests to the selected workloads are denied until then"
	default:
		out.Message = never + "and the denial of another refused document with this name is in force instead"
		out.Remedy = "correct the field, and rename one of the two documents"
	}
	return out
}

// describeDenial describes the effect of the Denial, as a clause of a message.
func (p *RefusedPolicy) describeDenial() string {
	switch spec := p.Denial.Spec.(type) {
	case *security.PeerAuthentication:
		return "plaintext connections to " + p.describeSelection(spec.GetSelector().GetMatchLabels()) + " are refused (STRICT)"
	case *security.AuthorizationPolicy:
		var targets []string
		for _, ref := range PolicyTargets(spec) {
			if TargetsGateway(ref) { // PF0006 reports the others
				targets = append(targets, ref.GetKind()+" "+ref.GetName())
			}
		}
		if len(targets) > 0 {
			return fmt.Sprintf("all requests and connections to %s in namespace %s are denied", strings.Join(targets, ", "), p.Key.Namespace)
		}
		return "all requests and connections to " + p.describeSelection(spec.GetSelector().GetMatchLabels()) + " are denied"
	}
	return ""
}

func (p *RefusedPolicy) describeSelection(labels map[string]string) string {
	if len(labels) == 0 {
		return fmt.Sprintf("all workloads of namespace %s (of the mesh, if it is the root namespace)", p.Key.Namespace)
	}
	var list []string
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		list = append(list, key+"="+labels[key])
	}
	return fmt.Sprintf("workloads labelled %s of namespace %s", strings.Join(list, ","), p.Key.Namespace)
}
