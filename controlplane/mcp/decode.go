package mcp

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
	mcpv1 "istio.io/api/mcp/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// resourceType is the type of the messages that contain documents.
const resourceType = "type.googleapis.com/istio.mcp.v1alpha1.Resource"

// limitedDepth limits the nesting of messages. Package config limits documents to 64 levels, and one level of a
// google.protobuf.Struct consists of three messages.
var limitedDepth = proto.UnmarshalOptions{RecursionLimit: 256}

// decoder decodes the documents of one kind.
type decoder struct {
	kind                config.Kind
	apiVersion, typeURL string
	source              string // the address of the source: config.Position.File of all problems
	parser              config.Parser
}

// decode returns the document of a resource, and its problems. The document is nil if it is invalid. policy is not nil if
// the document is a policy that the parser refused. name is the name of the resource, or "" in the state-of-the-world
// variant, which has no resource names.
func (d decoder) decode(name string, body *anypb.Any) (resource *config.Resource, problems []config.Problem, policy *config.RefusedPolicy) {
	r, problem := d.read(name, body)
	if problem != nil {
		return nil, []config.Problem{*problem}, nil
	}
	return d.parser.ParseResource(r, d.source)
}

func (d decoder) refuse(key config.Key, field, message string) *config.Problem {
	return &config.Problem{
		Code: config.InvalidValue, Severity: config.Error, Key: key, At: config.Position{File: d.source}, Field: field, Message: message,
		Remedy: "correct the document at the configuration source",
	}
}

// read decodes the messages of a resource without validating the document.
func (d decoder) read(name string, body *anypb.Any) (*config.Resource, *config.Problem) {
	key := config.Key{Kind: d.kind}
	key.Namespace, key.Name, _ = strings.Cut(name, "/")
	if t := body.GetTypeUrl(); t != resourceType && t != d.typeURL {
		return nil, d.refuse(key, "", fmt.Sprintf("the type of the resource is %q, not %s", t, resourceType))
	}
	m := &mcpv1.Resource{}
	if err := limitedDepth.Unmarshal(body.GetValue(), m); err != nil {
		return nil, d.refuse(key, "", "the content is not a "+strings.TrimPrefix(resourceType, "type.googleapis.com/"))
	}
	full := m.GetMetadata().GetName()
	var ok bool
	key.Namespace, key.Name, ok = strings.Cut(full, "/")
	switch {
	case !ok || key.Namespace == "" || key.Name == "":
		return nil, d.refuse(key, "metadata.name", fmt.Sprintf("%q is not of the form NAMESPACE/NAME", full))
	case name != "" && name != full:
		return nil, d.refuse(key, "metadata.name", fmt.Sprintf("%q differs from the name of the resource, %q", full, name))
	}
	spec, problem := d.readSpec(key, m.GetBody())
	if problem != nil {
		return nil, problem
	}
	r := &config.Resource{Key: key, APIVersion: d.apiVersion, Labels: m.GetMetadata().GetLabels(), Annotations: m.GetMetadata().GetAnnotations(), Spec: spec}
	if created := m.GetMetadata().GetCreateTime(); created.IsValid() && !created.AsTime().IsZero() {
		r.Created = created.AsTime()
	}
	return r, nil
}

func (d decoder) readSpec(key config.Key, body *anypb.Any) (proto.Message, *config.Problem) {
	spec := d.kind.NewSpec()
	if !isVersionOf(body.GetTypeUrl(), spec) {
		return nil, d.refuse(key, "body", fmt.Sprintf("the type of the body is %q, not %s", body.GetTypeUrl(), spec.ProtoReflect().Descriptor().FullName()))
	}
	if err := limitedDepth.Unmarshal(body.GetValue(), spec); err != nil {
		return nil, d.refuse(key, "spec", fmt.Sprintf("the content is not a valid %s message", spec.ProtoReflect().Descriptor().FullName()))
	}
	if path, found := findUnknownField(spec.ProtoReflect(), "spec"); found {
		return nil, d.refuse(key, path, "the document has a field that this version does not know")
	}
	return spec, nil
}

// isVersionOf reports whether a type URL names the message of spec, in any version of the API: the versions have the
// same fields.
func isVersionOf(typeURL string, spec proto.Message) bool {
	got := strings.Split(typeURL[strings.LastIndexByte(typeURL, '/')+1:], ".")
	want := strings.Split(string(spec.ProtoReflect().Descriptor().FullName()), ".")
	return len(got) == 4 && len(want) == 4 && got[0] == want[0] && got[1] == want[1] && got[3] == want[3]
}

// findUnknownField returns the path of the first message with a field that this version does not know. Such a field may
// restrict a policy. The caller therefore rejects the document instead of ignoring the field.
func findUnknownField(m protoreflect.Message, path string) (at string, found bool) {
	if len(m.GetUnknown()) > 0 {
		return path, true
	}
	visit := func(v protoreflect.Value, path string) {
		if !found {
			at, found = findUnknownField(v.Message(), path)
		}
	}
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		field := path + "." + fd.JSONName()
		switch {
		case fd.IsMap():
			if fd.MapValue().Message() != nil {
				v.Map().Range(func(k protoreflect.MapKey, item protoreflect.Value) bool {
					visit(item, fmt.Sprintf("%s[%s]", field, k))
					return !found
				})
			}
		case fd.Message() == nil:
		case fd.IsList():
			for i := range v.List().Len() {
				visit(v.List().Get(i), fmt.Sprintf("%s[%d]", field, i))
			}
		default:
			visit(v, field)
		}
		return !found
	})
	return at, found
}
