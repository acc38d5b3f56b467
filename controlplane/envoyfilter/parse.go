// Package envoyfilter parses EnvoyFilters and applies their patches to the resources of a proxy. It is pure: the same
// patches for the same resource produce the same bytes.
//
// If a patch is invalid, its document is refused. If a valid patch would produce an invalid resource, it is skipped for
// that resource and reported. The other patches are applied.
package envoyfilter

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/structpb"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// Filter is one parsed EnvoyFilter. It is immutable.
type Filter struct {
	*config.Resource
	patches []*patch
}

// patch is one patch of an EnvoyFilter.
type patch struct {
	filter  *Filter
	field   string // path of the patch in the document, for problems
	to      networking.EnvoyFilter_ApplyTo
	op      networking.EnvoyFilter_Patch_Operation
	class   networking.EnvoyFilter_Patch_FilterClass
	match   *networking.EnvoyFilter_EnvoyConfigObjectMatch
	value   proto.Message // nil for patches that remove an object
	version *regexp.Regexp
	// newestType is the extension type in the value that requires the newest Envoy, which is 1.minMinor. It is empty if
	// all supported versions have all types in the value.
	newestType protoreflect.FullName
	minMinor   uint32
	// digest is a hash of the complete patch.
	digest string
}

// Read parses an EnvoyFilter. It omits invalid patches, and returns a problem for each of them.
func Read(r *config.Resource) (*Filter, []config.Problem) {
	f := &Filter{Resource: r}
	var problems []config.Problem
	for i, p := range r.Spec.(*networking.EnvoyFilter).GetConfigPatches() {
		field := fmt.Sprintf("spec.configPatches[%d]", i)
		read, problem := f.read(field, p)
		if problem != nil {
			problems = append(problems, *problem)
			continue
		}
		f.patches = append(f.patches, read)
	}
	return f, problems
}

// Check returns the problems of an EnvoyFilter's patches. For resources of other kinds it returns nil. config.Parser
// calls it.
func Check(r *config.Resource) []config.Problem {
	if _, ok := r.Spec.(*networking.EnvoyFilter); !ok {
		return nil
	}
	_, problems := Read(r)
	return problems
}

func (f *Filter) read(field string, p *networking.EnvoyFilter_EnvoyConfigObjectPatch) (*patch, *config.Problem) {
	out := &patch{
		filter: f, field: field, to: p.GetApplyTo(), op: p.GetPatch().GetOperation(), class: p.GetPatch().GetFilterClass(), match: p.GetMatch(),
	}
	encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(p)
	if err != nil {
		return nil, f.refuse(field, "", err.Error(), "correct the patch")
	}
	sum := sha256.Sum256(encoded)
	out.digest = string(sum[:12])
	if expr := p.GetMatch().GetProxy().GetProxyVersion(); expr != "" {
		if out.version, err = regexp.Compile(expr); err != nil {
			return nil, f.refuse(field+".match.proxy.proxyVersion", expr, err.Error(), "use RE2 syntax")
		}
	}
	if out.op == networking.EnvoyFilter_Patch_REMOVE {
		return out, nil
	}
	out.value = newValue(out.to)
	if out.value == nil {
		return nil, f.refuse(field+".applyTo", out.to.String(), "EnvoyFilters cannot patch this kind of object", "use a supported value of applyTo, for example HTTP_FILTER")
	}
	problem := f.readValue(out, p.GetPatch().GetValue())
	out.newestType, out.minMinor = newestType(out.value)
	return out, problem
}

func (f *Filter) readValue(p *patch, value *structpb.Struct) *config.Problem {
	at := p.field + ".patch.value"
	if len(value.GetFields()) == 0 {
		return f.refuse(at, "", "the patch has no value", "set the value to add or merge")
	}
	var wrong *typeMismatchError
	if err := readValue(value, p.value); errors.As(err, &wrong) {
		return f.refuse(at+wrong.path, "", wrong.why, fmt.Sprintf("see Envoy's API, version 3, for %s", p.value.ProtoReflect().Descriptor().FullName()))
	}
	if p.isMerge() {
		return nil // a patch that is merged may be incomplete, because only the merged resource must be valid
	}
	if err := validate(p.value); err != nil {
		return f.refuse(at, "", "Envoy would reject the value: "+err.Error(), "correct the value")
	}
	return nil
}

func (f *Filter) refuse(field, value, message, remedy string) *config.Problem {
	return &config.Problem{Severity: config.Error, Key: f.Key, At: f.PositionOf(field), Field: field, Value: value, Message: message, Remedy: remedy}
}

// skippedProblem returns the warning for a patch that was skipped for one resource.
func (p *patch) skippedProblem(kind, name string, err error) config.Problem {
	return config.Problem{
		Code: config.PatchSkipped, Severity: config.Warning, Key: p.filter.Key, At: p.filter.PositionOf(p.field), Field: p.field, Value: name,
		Message: fmt.Sprintf("the control plane skips the patch for this %s, because Envoy would reject the result: %v", kind, err),
		Remedy:  "correct the patch, or restrict its match to the intended resources",
	}
}

func sortedNames[V any](m map[string]V) []string {
	return slices.SortedFunc(maps.Keys(m), cmp.Compare[string])
}
