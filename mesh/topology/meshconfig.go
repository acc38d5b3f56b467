package topology

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/internal/protoyaml"
	"github.com/pilotfish-mesh/pilotfish/internal/suggest"
)

// meshConfig reads Istio's mesh configuration, or the path of a file that contains it.
func (v value) meshConfig(t *Topology) {
	if v.node.Kind == yaml.ScalarNode && !v.isNull() {
		t.MeshFile = v.filePath(t)
		return
	}
	v.message(t.Mesh)
}

// checkMesh reads the mesh configuration from its own file, if there is one. It reports values that proxies would
// reject. It does not report fields without effect in that file, because the control plane watches the file and reports
// them.
func (t *Topology) checkMesh(doc *document) {
	at := t.spec.field("mesh")
	at.doc = doc
	if t.MeshFile != "" {
		t.readMeshFile(at)
	}
	problems, err := config.CheckMesh(t.Mesh)
	switch {
	case err != nil:
		at.problem("", "%v", err)
	case t.MeshFile == "":
		for _, p := range problems {
			p.At = config.Position{File: t.File, Line: config.FindLine(at.node, p.Field)}
			p.Field = at.join(p.Field)
			t.MeshProblems = append(t.MeshProblems, p)
		}
	}
}

func (t *Topology) readMeshFile(at value) {
	text, err := os.ReadFile(t.MeshFile)
	if err == nil {
		_, err = protoyaml.Unmarshal(string(text), t.Mesh)
	}
	if err != nil {
		at.problem("use the fields of Istio's MeshConfig", "%s: %v", t.MeshFile, err)
		return
	}
	t.validateTrustDomain()
}

// message decodes a protobuf message from its JSON form. Protobuf's decoder reports no YAML positions. If decoding
// fails, message therefore decodes field by field to find the position of the error.
func (v value) message(into proto.Message) {
	if v.isNull() || v.decode(into) == nil {
		return
	}
	found := false
	for _, p := range v.pairs() {
		found = p.checkField(into) || found
	}
	if !found && len(v.doc.problems) == 0 {
		v.problem("", "%s", protoMessage(v.decode(into.ProtoReflect().New().Interface())))
	}
}

// checkField records the problems of the field p of the message parent. It reports whether there are any.
func (p pair) checkField(parent proto.Message) bool {
	fields := parent.ProtoReflect().Descriptor().Fields()
	field := fields.ByJSONName(p.name)
	if field == nil {
		field = fields.ByTextName(p.name)
	}
	if field == nil {
		p.key.problem(protoRemedy(p.name, fields), "unknown field")
		return true
	}
	alone := parent.ProtoReflect().New().Interface()
	err := p.val.decodeAs(p.name, alone)
	if err == nil {
		return false
	}
	before := len(p.val.doc.problems)
	if field.Message() != nil && !field.IsMap() {
		child := alone.ProtoReflect()
		items := []value{p.val}
		if field.IsList() {
			items = p.val.list()
		}
		for _, item := range items {
			item.checkMessageField(child, field)
		}
	}
	if len(p.val.doc.problems) == before {
		p.val.problem("", "%s", protoMessage(err))
	}
	return true
}

// checkMessageField checks a field whose value is a message. It does not support well-known types, because the JSON
// form of most of them is not an object.
func (v value) checkMessageField(parent protoreflect.Message, field protoreflect.FieldDescriptor) {
	if strings.HasPrefix(string(field.Message().FullName()), "google.protobuf.") {
		return
	}
	var m protoreflect.Message
	if field.IsList() {
		m = parent.NewField(field).List().NewElement().Message()
	} else {
		m = parent.NewField(field).Message()
	}
	v.message(m.Interface())
}

// decodeAs decodes v into the field of into that is called name.
func (v value) decodeAs(name string, into proto.Message) error {
	raw, err := v.json()
	if err != nil {
		return err
	}
	whole, err := json.Marshal(map[string]json.RawMessage{name: raw})
	if err != nil {
		return err
	}
	return protojson.Unmarshal(whole, into)
}

func (v value) decode(into proto.Message) error {
	raw, err := v.json()
	if err != nil {
		return err
	}
	return protojson.Unmarshal(raw, into)
}

func (v value) json() ([]byte, error) {
	var plain any
	if err := v.node.Decode(&plain); err != nil {
		return nil, err
	}
	return json.Marshal(plain)
}

// protoErrorPrefix matches the prefix of protobuf's errors. It contains a position in the JSON form, which the user
// does not see. The protobuf library deliberately varies between a normal and a non-breaking space.
var protoErrorPrefix = regexp.MustCompile(`^(proto:[\s\x{a0}]*)?(syntax error[\s\x{a0}]*)?(\(line \d+:\d+\): ?)?`)

func protoMessage(err error) string {
	if err == nil {
		return "not valid"
	}
	return protoErrorPrefix.ReplaceAllString(err.Error(), "")
}

func protoRemedy(name string, fields protoreflect.FieldDescriptors) string {
	known := make([]string, fields.Len())
	for i := range known {
		known[i] = fields.Get(i).JSONName()
	}
	if near := suggest.Name(name, known); near != "" {
		return "did you mean " + near + "?"
	}
	return "Istio's reference of MeshConfig lists the fields"
}
