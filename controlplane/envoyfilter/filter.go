// Package envoyfilter reads EnvoyFilters and applies their patches to what was made for a proxy. It is pure: the same
// patches on the same resource give the same bytes.
//
// A patch that cannot be read is refused with its document. One that can, and makes something that breaks the rules of
// Envoy's types, is left out where it does, and told of; the others are applied.
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

// Filter is one EnvoyFilter, read. Immutable.
type Filter struct {
	*config.Resource
	patches []*patch
}

// patch is one of its patches.
type patch struct {
	filter  *Filter
	field   string // its place in the document
	to      networking.EnvoyFilter_ApplyTo
	op      networking.EnvoyFilter_Patch_Operation
	class   networking.EnvoyFilter_Patch_FilterClass
	match   *networking.EnvoyFilter_EnvoyConfigObjectMatch
	value   proto.Message // nil for a removal
	version *regexp.Regexp
	// youngest is the type within the value that only Envoys from 1.minor on have; empty when all do.
	youngest protoreflect.FullName
	minor    uint32
	// digest is of all that the patch says.
	digest string
}

// Read reads an EnvoyFilter. Patches that cannot be read are left out, and told of.
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

// Check says what of an EnvoyFilter's patches cannot be read; nothing of other kinds. It is for a config.Parser.
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
		return nil, f.refuse(field+".applyTo", out.to.String(), "nothing that can be patched", "name one of Envoy's objects, as in HTTP_FILTER")
	}
	problem := f.readValue(out, p.GetPatch().GetValue())
	out.youngest, out.minor = youngest(out.value)
	return out, problem
}

func (f *Filter) readValue(p *patch, value *structpb.Struct) *config.Problem {
	at := p.field + ".patch.value"
	if len(value.GetFields()) == 0 {
		return f.refuse(at, "", "the patch has no value", "say what to add or change")
	}
	var wrong *misfit
	if err := readValue(value, p.value); errors.As(err, &wrong) {
		return f.refuse(at+wrong.path, "", wrong.why, fmt.Sprintf("see Envoy's API, version 3, for %s", p.value.ProtoReflect().Descriptor().FullName()))
	}
	if p.op == networking.EnvoyFilter_Patch_MERGE {
		return nil // only what comes of it has to be whole
	}
	if err := valid(p.value); err != nil {
		return f.refuse(at, "", "Envoy would not take it: "+err.Error(), "correct the value")
	}
	return nil
}

func (f *Filter) refuse(field, value, message, remedy string) *config.Problem {
	return &config.Problem{Severity: config.Error, Key: f.Key, At: f.Place(field), Field: field, Value: value, Message: message, Remedy: remedy}
}

// problem tells of a patch that was left out for one resource.
func (p *patch) problem(kind, name string, err error) config.Problem {
	return config.Problem{
		Code: config.PatchLeftOut, Severity: config.Warning, Key: p.filter.Key, At: p.filter.Place(p.field), Field: p.field, Value: name,
		Message: fmt.Sprintf("the patch is left out at this %s: what comes of it Envoy would not take: %v", kind, err),
		Remedy:  "correct the patch, or match what it is for",
	}
}

func sortedNames[V any](m map[string]V) []string {
	return slices.SortedFunc(maps.Keys(m), cmp.Compare[string])
}
