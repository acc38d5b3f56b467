package config

import (
	"cmp"
	"fmt"
	"regexp"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// objectHeader contains the fields that documents of all kinds have.
type objectHeader struct {
	root       *yaml.Node
	apiVersion string
	group      string
	version    string
	kind       string
	metadata   *yaml.Node
	spec       *yaml.Node
	items      *yaml.Node // items of a List
	meta       metadata
}

type metadata struct {
	labels      map[string]string
	annotations map[string]string
	created     time.Time
}

// readHeader reads the fields that identify the document, as far as they are valid. It runs first, so that all later
// problems have a key.
func (d *document) readHeader(root *yaml.Node, defaultNamespace string) objectHeader {
	d.origin = d.nodePosition(root)
	h := objectHeader{root: root}
	if root.Kind != yaml.MappingNode {
		return h
	}
	for i := 0; i+1 < len(root.Content); i += 2 {
		key, value := root.Content[i], followAlias(root.Content[i+1])
		switch key.Value {
		case "apiVersion":
			h.apiVersion = value.Value
			h.group, h.version = splitAPIVersion(value.Value)
		case "kind":
			h.kind = value.Value
		case "metadata":
			h.metadata = value
		case "spec":
			h.spec = value
		case "items":
			if value.Kind == yaml.SequenceNode {
				h.items = value
			}
		}
		d.setPosition(key.Value, key, value)
	}
	if !strings.HasSuffix(h.kind, "List") {
		h.items = nil
	}
	d.key.Kind = Kind(h.kind)
	if h.metadata != nil {
		d.key.Name = scalarField(h.metadata, "name")
		d.key.Namespace = scalarField(h.metadata, "namespace")
	}
	switch {
	case d.key.Kind.IsClusterScoped():
		d.key.Namespace = ""
	case d.key.Namespace == "":
		d.key.Namespace = defaultNamespace
	}
	return h
}

func scalarField(mapping *yaml.Node, name string) string {
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if mapping.Content[i].Value == name {
			if v := followAlias(mapping.Content[i+1]); v.Kind == yaml.ScalarNode && !isNull(v) {
				return v.Value
			}
		}
	}
	return ""
}

// read returns the document's resource, or nil if the document is refused or has no effect.
func (d *document) read(h objectHeader, check func(*Resource) []Problem) *Resource {
	info, ok := d.lookupKind(h)
	if !ok {
		return nil
	}
	if d.key.Kind.IsClusterState() {
		return d.readClusterObject(h)
	}
	d.checkFields(h)
	d.readMetadata(&h)
	r := &Resource{
		Key: d.key, APIVersion: h.apiVersion, Labels: h.meta.labels, Annotations: h.meta.annotations, Created: h.meta.created,
		Origin: d.origin, Positions: d.positions,
	}
	switch d.key.Kind {
	case Service:
		r.Spec = d.readService(h.spec)
	case Secret:
		secret := d.readSecret(h.root)
		if secret == nil && !d.refused {
			d.inert = true
			d.reportAs(KindNoEffect, Info, d.origin, "", "", "the Secret was read and has no effect here: it has no certificate", noRemedyNeeded)
			return nil
		}
		if secret != nil {
			secret.Accounts = parseAccounts(h.meta.annotations)
		}
		r.Spec = secret
	case WorkloadGroup:
		d.checkMemberAnnotations(h.meta.annotations)
		r.Spec = d.readSpec(h.spec, info)
	default:
		r.Spec = d.readSpec(h.spec, info)
	}
	if d.refused || !d.runCheck(check, r) {
		return nil
	}
	return r
}

// runCheck calls check, unless it is nil, and records the problems. It reports whether the document is still accepted.
func (d *document) runCheck(check func(*Resource) []Problem, r *Resource) bool {
	if check == nil {
		return true
	}
	for _, p := range check(r) {
		d.refused = d.refused || p.Severity == Error
		d.reportAs(cmp.Or(p.Code, usualCode(p.Severity)), p.Severity, p.At, p.Field, p.Value, p.Message, p.Remedy)
	}
	return !d.refused
}

// noRemedyNeeded is the remedy text of a problem that the author may ignore.
const noRemedyNeeded = "none needed: the document may stay"

// lookupKind returns the document's kind. ok is false if the kind is unknown, unsupported or without effect; the rest
// of the document is then not read.
func (d *document) lookupKind(h objectHeader) (info kindInfo, ok bool) {
	switch {
	case h.root.Kind != yaml.MappingNode:
		d.invalidName = true
		d.refuseAs(NoSuchKind, d.nodePosition(h.root), "", h.root.Value, "not a resource: a document is a mapping with apiVersion, kind, metadata and spec", "write it as a resource, or move it to another directory")
		return info, false
	case h.kind == "" || h.apiVersion == "":
		d.unknownKind = h.kind == ""
		missing := "kind"
		if h.kind != "" {
			missing = "apiVersion"
		}
		d.refuseAs(NoSuchKind, d.nodePosition(h.root), missing, "", "the document has no "+missing, "set it, or move the file to another directory if it is not a resource")
		return info, false
	}
	info, known := kinds[Kind(h.kind)]
	if known && info.group == h.group {
		return info, d.checkVersion(h, info)
	}
	switch {
	case isInert(h.group, h.kind):
		d.inert = true
		d.reportAs(KindNoEffect, Info, d.origin, "", "", fmt.Sprintf("%s was read and has no effect here", h.kind), noRemedyNeeded)
	case isUnsupported(h.group, h.kind):
		d.inert = true
		d.reportAs(KindNoEffect, Warning, d.origin, "kind", h.kind, fmt.Sprintf("%s of %s is not supported in this version: it has no effect", h.kind, h.group), "remove the document, unless another mesh uses the document")
	case known && (isMeshGroup(h.group) || isMisspelledGroup(h.group)):
		d.refuseAs(NoSuchKind, d.fieldPosition("apiVersion"), "apiVersion", h.apiVersion, "no known API for a "+h.kind, "one of: "+strings.Join(d.key.Kind.APIVersions(), ", "))
	case isMeshGroup(h.group):
		d.unknownKind = true
		d.refuseAs(NoSuchKind, d.fieldPosition("kind"), "kind", h.kind, "unknown kind", kindRemedy(h.group, h.kind))
	default:
		d.reportNoEffect(h)
	}
	return info, false
}

// reportNoEffect records that the kind has no effect.
func (d *document) reportNoEffect(h objectHeader) {
	d.inert = true
	d.reportAs(KindNoEffect, Info, d.origin, "", "", fmt.Sprintf("%s of %s was read and has no effect here", h.kind, h.apiVersion), noRemedyNeeded)
}

func (d *document) checkVersion(h objectHeader, info kindInfo) bool {
	for _, v := range info.versions {
		if v == h.version {
			return true
		}
	}
	if d.key.Kind.IsClusterState() {
		d.reportNoEffect(h)
		return false
	}
	d.refuseAs(NoSuchKind, d.fieldPosition("apiVersion"), "apiVersion", h.apiVersion, "no known version of a "+h.kind, "one of: "+strings.Join(d.key.Kind.APIVersions(), ", "))
	return false
}

func (d *document) checkFields(h objectHeader) {
	allowed := []string{"apiVersion", "kind", "metadata", "spec", "status"}
	if d.key.Kind == Secret {
		allowed = secretFields
	}
	for i := 0; i+1 < len(h.root.Content); i += 2 {
		key := h.root.Content[i]
		if !contains(allowed, key.Value) {
			remedy := didYouMean(key.Value, allowed)
			if d.hasSpecField(key.Value) {
				remedy = "move the field under spec: check the indentation"
			}
			d.refuseAs(NoSuchField, d.nodePosition(key), key.Value, "", "unknown field", remedy)
		}
	}
}

// metadataFields lists all fields of Kubernetes' ObjectMeta. Fields that are not read have no effect on a mesh.
var metadataFields = []string{
	"name", "namespace", "labels", "annotations", "generateName", "selfLink", "uid", "resourceVersion", "generation",
	"creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "ownerReferences", "finalizers", "managedFields",
	"clusterName",
}

var (
	dnsLabel     = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
	dnsSubdomain = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
	labelValue   = regexp.MustCompile(`^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$`)
	labelName    = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`)
)

func (d *document) readMetadata(h *objectHeader) {
	if h.metadata == nil || h.metadata.Kind != yaml.MappingNode {
		d.refuseAt(d.fieldPosition("metadata"), "metadata", "", "the document has no metadata", "set metadata with a name")
		return
	}
	d.readFields(h.metadata, "metadata", metadataFields, func(name string, value *yaml.Node, path string) {
		switch name {
		case "name", "namespace":
			d.readText(value, path)
		case "labels":
			h.meta.labels = d.readTextMap(value, path)
			d.checkLabels(h.meta.labels, path)
		case "annotations":
			h.meta.annotations = d.readTextMap(value, path)
		case "creationTimestamp":
			// A document exported from a cluster retains its age, so that conflicts are resolved as in that cluster.
			h.meta.created, _ = time.Parse(time.RFC3339, value.Value)
		}
	})
	d.checkName()
}

func (d *document) checkName() {
	name, namespace := d.key.Name, d.key.Namespace
	d.invalidName = !dnsSubdomain.MatchString(name) || !dnsLabel.MatchString(namespace)
	switch {
	case name == "":
		d.refuseAt(d.fieldPosition("metadata"), "metadata.name", "", "the document has no name", "set metadata.name")
	case len(name) > 253 || !dnsSubdomain.MatchString(name):
		d.refuseAt(d.fieldPosition("metadata.name"), "metadata.name", name, "not a valid name", "use lower-case letters, digits, '-' and '.', at most 253")
	case d.key.Kind == Service && !dnsLabel.MatchString(name):
		d.refuseAt(d.fieldPosition("metadata.name"), "metadata.name", name, "not a Service's name", "use lower-case letters, digits and '-', at most 63")
	}
	if !dnsLabel.MatchString(namespace) {
		d.refuseAt(d.fieldPosition("metadata.namespace"), "metadata.namespace", namespace, "not a namespace's name", "use lower-case letters, digits and '-', at most 63")
	}
}

func (d *document) checkLabels(labels map[string]string, path string) {
	for key, value := range labels {
		at := path + "[" + key + "]"
		if !isLabelKey(key) {
			d.refuseAt(d.fieldPosition(at), at, key, "not a label's key", "use [prefix/]name of letters, digits, '-', '_' and '.', the name at most 63 long")
		}
		if !labelValue.MatchString(value) {
			d.refuseAt(d.fieldPosition(at), at, value, "not a label's value", "use letters, digits, '-', '_' and '.', at most 63")
		}
	}
}
