package config

import (
	"cmp"
	"fmt"
	"regexp"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// head is what all documents have.
type head struct {
	root       *yaml.Node
	apiVersion string
	group      string
	version    string
	kind       string
	metadata   *yaml.Node
	spec       *yaml.Node
	items      *yaml.Node // of a List
	meta       metadata
}

type metadata struct {
	labels      map[string]string
	annotations map[string]string
	created     time.Time
}

// readHead reads what identifies a document, as far as it goes, so that all that is said of it later has a name.
func (d *document) readHead(root *yaml.Node, defaultNamespace string) head {
	d.origin = d.at(root)
	h := head{root: root}
	if root.Kind != yaml.MappingNode {
		return h
	}
	for i := 0; i+1 < len(root.Content); i += 2 {
		key, value := root.Content[i], resolve(root.Content[i+1])
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
		d.mark(key.Value, key, value)
	}
	if !strings.HasSuffix(h.kind, "List") {
		h.items = nil
	}
	d.key.Kind = Kind(h.kind)
	if h.metadata != nil {
		d.key.Name = scalarField(h.metadata, "name")
		d.key.Namespace = scalarField(h.metadata, "namespace")
	}
	if d.key.Namespace == "" {
		d.key.Namespace = defaultNamespace
	}
	return h
}

func scalarField(mapping *yaml.Node, name string) string {
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if mapping.Content[i].Value == name {
			if v := resolve(mapping.Content[i+1]); v.Kind == yaml.ScalarNode && !isNull(v) {
				return v.Value
			}
		}
	}
	return ""
}

// read makes the document's resource, or nil when it is refused or without effect.
func (d *document) read(h head, check func(*Resource) []Problem) *Resource {
	info, ok := d.recognise(h)
	if !ok {
		return nil
	}
	d.checkFields(h)
	d.readMetadata(&h)
	r := &Resource{
		Key: d.key, APIVersion: h.apiVersion, Labels: h.meta.labels, Annotations: h.meta.annotations, Created: h.meta.created,
		Origin: d.origin, Places: d.places,
	}
	switch d.key.Kind {
	case Service:
		r.Spec = d.readService(h.spec)
	case Secret:
		secret := d.readSecret(h.root)
		if secret == nil && !d.refused {
			d.inert = true
			d.reportAs(KindNoEffect, Info, d.origin, "", "", "the Secret was read and has no effect here: it has no certificate", mayStay)
			return nil
		}
		if secret != nil {
			secret.Accounts = accountsOf(h.meta.annotations)
		}
		r.Spec = secret
	default:
		r.Spec = d.readSpec(h.spec, info)
	}
	if d.refused || !d.passes(check, r) {
		return nil
	}
	return r
}

// passes has a document checked by whoever knows more.
func (d *document) passes(check func(*Resource) []Problem, r *Resource) bool {
	if check == nil {
		return true
	}
	for _, p := range check(r) {
		d.refused = d.refused || p.Severity == Error
		d.reportAs(cmp.Or(p.Code, usualCode(p.Severity)), p.Severity, p.At, p.Field, p.Value, p.Message, p.Remedy)
	}
	return !d.refused
}

// mayStay is the remedy for what needs none.
const mayStay = "nothing: it is fine to keep it"

// recognise finds the document's kind; ok is false when there is nothing more to read.
func (d *document) recognise(h head) (info kindInfo, ok bool) {
	switch {
	case h.root.Kind != yaml.MappingNode:
		d.nameless = true
		d.refuseAs(NoSuchKind, d.at(h.root), "", h.root.Value, "not a resource: a document is a mapping with apiVersion, kind, metadata and spec", "write it as one, or keep it elsewhere")
		return info, false
	case h.kind == "" || h.apiVersion == "":
		d.kindless = h.kind == ""
		missing := "kind"
		if h.kind != "" {
			missing = "apiVersion"
		}
		d.refuseAs(NoSuchKind, d.at(h.root), missing, "", "the document has no "+missing, "give it one, or keep what is no resource in another directory")
		return info, false
	}
	info, known := kinds[Kind(h.kind)]
	if known && info.group == h.group {
		return info, d.checkVersion(h, info)
	}
	switch {
	case isInert(h.group, h.kind):
		d.inert = true
		d.reportAs(KindNoEffect, Info, d.origin, "", "", fmt.Sprintf("%s was read and has no effect here", h.kind), mayStay)
	case isUnsupported(h.group, h.kind):
		d.inert = true
		d.reportAs(KindNoEffect, Warning, d.origin, "kind", h.kind, fmt.Sprintf("%s of %s is not supported in this version: it has no effect", h.kind, h.group), "keep it for a mesh that supports it, or remove it")
	case known:
		d.refuseAs(NoSuchKind, d.place("apiVersion"), "apiVersion", h.apiVersion, "no known API for a "+h.kind, "one of: "+info.allowedAPIVersions())
	default:
		d.kindless = true
		d.refuseAs(NoSuchKind, d.place("kind"), "kind", h.kind, "unknown kind", didYouMean(h.kind, kindNames()))
	}
	return info, false
}

func (d *document) checkVersion(h head, info kindInfo) bool {
	for _, v := range info.versions {
		if v == h.version {
			return true
		}
	}
	d.refuseAs(NoSuchKind, d.place("apiVersion"), "apiVersion", h.apiVersion, "no known version of a "+h.kind, "one of: "+info.allowedAPIVersions())
	return false
}

func (d *document) checkFields(h head) {
	allowed := []string{"apiVersion", "kind", "metadata", "spec", "status"}
	if d.key.Kind == Secret {
		allowed = secretFields
	}
	for i := 0; i+1 < len(h.root.Content); i += 2 {
		key := h.root.Content[i]
		if !contains(allowed, key.Value) {
			remedy := didYouMean(key.Value, allowed)
			if d.specHas(key.Value) {
				remedy = "it belongs under spec: check the indentation"
			}
			d.refuseAs(NoSuchField, d.at(key), key.Value, "", "unknown field", remedy)
		}
	}
}

// metadataFields are all of Kubernetes' ObjectMeta. Those that are not read here have no effect on a mesh.
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

func (d *document) readMetadata(h *head) {
	if h.metadata == nil || h.metadata.Kind != yaml.MappingNode {
		d.refuseAt(d.place("metadata"), "metadata", "", "the document has no metadata", "give it metadata with a name")
		return
	}
	d.fields(h.metadata, "metadata", metadataFields, func(name string, value *yaml.Node, path string) {
		switch name {
		case "name", "namespace":
			d.text(value, path)
		case "labels":
			h.meta.labels = d.textMap(value, path)
			d.checkLabels(h.meta.labels, path)
		case "annotations":
			h.meta.annotations = d.textMap(value, path)
		case "creationTimestamp":
			// The age that a document had in the cluster it was taken from decides conflicts as it did there.
			h.meta.created, _ = time.Parse(time.RFC3339, value.Value)
		}
	})
	d.checkName()
}

func (d *document) checkName() {
	name, namespace := d.key.Name, d.key.Namespace
	d.nameless = !dnsSubdomain.MatchString(name) || !dnsLabel.MatchString(namespace)
	switch {
	case name == "":
		d.refuseAt(d.place("metadata"), "metadata.name", "", "the document has no name", "give it one")
	case len(name) > 253 || !dnsSubdomain.MatchString(name):
		d.refuseAt(d.place("metadata.name"), "metadata.name", name, "not a name", "use lower-case letters, digits, '-' and '.', at most 253")
	case d.key.Kind == Service && !dnsLabel.MatchString(name):
		d.refuseAt(d.place("metadata.name"), "metadata.name", name, "not a Service's name", "use lower-case letters, digits and '-', at most 63")
	}
	if !dnsLabel.MatchString(namespace) {
		d.refuseAt(d.place("metadata.namespace"), "metadata.namespace", namespace, "not a namespace's name", "use lower-case letters, digits and '-', at most 63")
	}
}

func (d *document) checkLabels(labels map[string]string, path string) {
	for key, value := range labels {
		at := path + "[" + key + "]"
		prefix, name, ok := strings.Cut(key, "/")
		if !ok {
			prefix, name = "", key
		}
		if !labelName.MatchString(name) || ok && (len(prefix) > 253 || !dnsSubdomain.MatchString(prefix)) {
			d.refuseAt(d.place(at), at, key, "not a label's key", "use [prefix/]name of letters, digits, '-', '_' and '.', the name at most 63 long")
		}
		if !labelValue.MatchString(value) {
			d.refuseAt(d.place(at), at, value, "not a label's value", "use letters, digits, '-', '_' and '.', at most 63")
		}
	}
}
