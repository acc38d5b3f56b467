package kube

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// parsedDocument is the result of parsing a document of an Istio kind.
type parsedDocument struct {
	resource *config.Resource // nil if the document is refused
	policy   *config.RefusedPolicy
	problems []config.Problem
	bytes    int
}

// parseDocument parses an object of an Istio kind, as the parser does for files. The position of all problems is the
// name of the object.
func parseDocument(parser config.Parser, kind config.Kind, o runtime.Object) *parsedDocument {
	raw := o.(*rawObject)
	key := config.Key{Kind: kind, Namespace: raw.Namespace, Name: raw.Name}
	at := config.Position{File: key.String()}
	parsed := parser.ParseFile(at.File, raw.text)
	document := &parsedDocument{problems: parsed.Problems, bytes: len(raw.text)}
	for i := range document.problems { // lines of the encoded text mean nothing to users
		document.problems[i].At = at
	}
	if len(parsed.Policies) > 0 {
		document.policy = parsed.Policies[0]
	}
	if len(parsed.Documents) == 1 && parsed.Documents[0].Resource != nil {
		r := *parsed.Documents[0].Resource
		r.Origin, r.Positions = at, nil
		document.resource = &r
	}
	return document
}

// documentTable stores the documents of an Istio kind. While a document is refused, its last accepted version stays in
// force.
type documentTable struct {
	kind   config.Kind
	parser config.Parser
	apply  applyFunc
	now    func() time.Time

	mu        sync.Mutex
	documents map[config.Key]*documentEntry
}

// documentEntry is the state of one document.
type documentEntry struct {
	accepted *config.Resource // the version in force; nil if no version was accepted
	since    time.Time        // when the accepted version was read
	refused  bool             // the current version is refused
	denied   bool             // the traffic of the policy's workloads is denied
	problems []config.Problem
	bytes    int
}

func newDocumentTable(kind config.Kind, parser config.Parser, apply applyFunc) *documentTable {
	return &documentTable{kind: kind, parser: parser, apply: apply, now: time.Now, documents: map[config.Key]*documentEntry{}}
}

func (t *documentTable) key(o *object) config.Key {
	return config.Key{Kind: t.kind, Namespace: o.namespace, Name: o.name}
}

func (t *documentTable) put(o *object) {
	if r := t.record(o); r != nil {
		t.apply([]*config.Resource{r}, nil)
	} else {
		t.apply(nil, []config.Key{t.key(o)}) // a denial may have been in force
	}
}

// record updates the entry of a document. It returns the resource to store, or nil if no version is in force.
func (t *documentTable) record(o *object) *config.Resource {
	t.mu.Lock()
	defer t.mu.Unlock()
	key, parsed := t.key(o), o.value.(*parsedDocument)
	old := t.documents[key]
	entry := &documentEntry{problems: parsed.problems, bytes: parsed.bytes, refused: parsed.resource == nil}
	t.documents[key] = entry
	switch {
	case parsed.resource != nil:
		entry.accepted, entry.since = parsed.resource, t.now()
		if old != nil && old.accepted.Equal(parsed.resource) && old.accepted.Created.Equal(parsed.resource.Created) {
			entry.accepted, entry.since = old.accepted, old.since
		}
	case old != nil && old.accepted != nil:
		entry.accepted, entry.since = old.accepted, old.since
	case parsed.policy != nil:
		entry.denied = t.parser.IsDenied(parsed.policy)
		problem := parsed.policy.NewProblem(t.parser.OnInvalidPolicy, entry.denied)
		problem.At = config.Position{File: key.String()}
		entry.problems = append(entry.problems, problem)
		if entry.denied {
			return parsed.policy.Denial
		}
	}
	return entry.accepted
}

func (t *documentTable) remove(o *object) {
	t.mu.Lock()
	key := t.key(o)
	_, ok := t.documents[key]
	delete(t.documents, key)
	t.mu.Unlock()
	if ok {
		t.apply(nil, []config.Key{key})
	}
}

func (t *documentTable) replace(all []*object) {
	listed := map[config.Key]bool{}
	var put []*config.Resource
	var del []config.Key
	for _, o := range all {
		key := t.key(o)
		listed[key] = true
		if r := t.record(o); r != nil {
			put = append(put, r)
		} else {
			del = append(del, key)
		}
	}
	t.apply(put, append(del, t.forget(func(key config.Key) bool { return !listed[key] })...))
}

func (t *documentTable) removeNamespaces(drop func(string) bool) {
	t.apply(nil, t.forget(func(key config.Key) bool { return drop(key.Namespace) }))
}

// forget removes the entries for which drop returns true and returns their keys.
func (t *documentTable) forget(drop func(config.Key) bool) (keys []config.Key) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for key := range t.documents {
		if drop(key) {
			delete(t.documents, key)
			keys = append(keys, key)
		}
	}
	return keys
}

func (t *documentTable) size() (objects, bytes int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, entry := range t.documents {
		bytes += entry.bytes
	}
	return len(t.documents), bytes
}

// problems returns the problems of all documents, ordered by namespace and name.
func (t *documentTable) problems() (all []config.Problem) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, key := range t.sortedKeys() {
		all = append(all, t.documents[key].problems...)
	}
	return all
}

// states returns the state of all documents, ordered by namespace and name.
func (t *documentTable) states() (all []config.Document) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, key := range t.sortedKeys() {
		entry := t.documents[key]
		document := config.Document{Key: key, At: config.Position{File: key.String()}, State: config.InForce, Since: entry.since}
		switch {
		case entry.denied:
			document.State = config.Denied
		case entry.refused && entry.accepted == nil:
			document.State = config.Refused
		case entry.refused:
			document.State = config.Stale
		}
		all = append(all, document)
	}
	return all
}

func (t *documentTable) sortedKeys() []config.Key {
	return slices.SortedFunc(maps.Keys(t.documents), config.CompareKeys)
}

// istioKind returns the kind of an Istio API group that has this name, and whether there is one.
func istioKind(group, name string) (config.Kind, bool) {
	for _, kind := range config.IstioKinds() {
		if string(kind) == name && strings.HasPrefix(kind.APIVersions()[0], group+"/") {
			return kind, true
		}
	}
	return "", false
}
