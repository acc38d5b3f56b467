package mcp

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// Limits of one source. They are far above practical sizes.
const (
	// maxResponse limits the size in bytes of one response.
	maxResponse = 64 << 20
	// maxTotal limits the total size in bytes of a source's documents in their protobuf encoding.
	maxTotal = 256 << 20
	// maxDocuments limits the number of documents of one kind.
	maxDocuments = 20_000
	// maxRejected limits the number of rejected documents of one kind whose problems are stored.
	maxRejected = 100
	// maxReasons and maxReason limit the number of problems in a NACK, and the length of each.
	maxReasons, maxReason = 10, 1000
)

// collection contains the documents of one kind of a source.
type collection struct {
	decoder
	documents map[string]document // the accepted documents, by the name of the resource
	size      int                 // size in bytes of the accepted documents in their protobuf encoding
	warnings  []config.Problem    // of the accepted documents, ordered by name
	// synced: the client has at least once had all documents of the kind.
	synced bool
	// rejected contains the problems of the documents that were rejected last, by the name of the resource, or by ""
	// if they concern the whole response.
	rejected map[string][]config.Problem
	// incomplete: on this stream, the client rejected a response of the delta variant. The valid documents of that
	// response are missing, and the server does not send them again on this stream.
	incomplete bool
}

// document is an accepted document.
type document struct {
	version  string
	hash     [sha256.Size]byte
	size     int
	resource *config.Resource
	warnings []config.Problem
	since    time.Time
}

func newCollection(kind config.Kind, source string, parser config.Parser) *collection {
	typeURL := TypeURL(kind)
	_, apiVersion, _ := ParseTypeURL(typeURL)
	return &collection{
		decoder:   decoder{kind: kind, apiVersion: apiVersion, typeURL: typeURL, source: source, parser: parser},
		documents: map[string]document{}, rejected: map[string][]config.Problem{},
	}
}

// versions returns the versions of the accepted documents, for a new stream. If the client has never had all documents
// of the kind, versions returns nil, so that the server sends all.
func (c *collection) versions() map[string]string {
	if !c.synced {
		return nil
	}
	versions := make(map[string]string, len(c.documents))
	for name, d := range c.documents {
		versions[name] = d.version
	}
	return versions
}

// change is the effect of a valid response.
type change struct {
	documents map[string]document // all documents of the kind after the response
	size      int
	added     map[string]bool // the names of the documents in put
	put       []*config.Resource
	del       []config.Key
}

// validate returns the effect of a response, or the problems of its documents by the name of the resource. It does not
// change c. available is the maximum size in bytes of all documents of the kind.
func (c *collection) validate(u *update, now time.Time, available int) (*change, map[string][]config.Problem) {
	if len(u.resources) > maxDocuments {
		return nil, c.refuseAll(fmt.Sprintf("%d documents in one response exceed the limit of %d", len(u.resources), maxDocuments))
	}
	next := &change{documents: maps.Clone(c.documents), size: c.size, added: map[string]bool{}}
	if u.full {
		next.documents, next.size = map[string]document{}, 0
	}
	for _, name := range u.removed {
		next.remove(name)
	}
	rejected := map[string][]config.Problem{}
	for _, r := range u.resources {
		if len(rejected) < maxRejected {
			c.validateResource(r, next, rejected, now)
		}
	}
	switch {
	case len(rejected) > 0:
		return nil, rejected
	case len(next.documents) > maxDocuments:
		return nil, c.refuseAll(fmt.Sprintf("%d documents of this kind exceed the limit of %d", len(next.documents), maxDocuments))
	case next.size > available:
		return nil, c.refuseAll(fmt.Sprintf("the documents of this source exceed the limit of %d MiB", maxTotal>>20))
	}
	for name, d := range c.documents {
		if _, ok := next.documents[name]; !ok {
			next.del = append(next.del, d.resource.Key)
		}
	}
	return next, nil
}

// validateResource decodes r and adds the document to next, or its problems to rejected.
func (c *collection) validateResource(r namedResource, next *change, rejected map[string][]config.Problem, now time.Time) {
	hash := sha256.Sum256(r.body.GetValue())
	if old, ok := c.documents[r.name]; ok && old.hash == hash && r.name != "" {
		old.version = r.version
		next.set(r.name, old)
		return
	}
	resource, problems := c.decode(r.name, r.body)
	if resource == nil {
		name := r.name
		if name == "" && len(problems) > 0 && problems[0].Key.Name != "" {
			name = ResourceName(problems[0].Key)
		}
		rejected[name] = append(rejected[name], problems...)
		return
	}
	name := ResourceName(resource.Key)
	if next.added[name] {
		rejected[name] = append(rejected[name], *c.refuse(resource.Key, "metadata.name", "the response has two documents of this name"))
		return
	}
	d := document{version: r.version, hash: hash, size: len(r.body.GetValue()), resource: resource, warnings: problems, since: now}
	if old, ok := c.documents[name]; ok && old.resource.Equal(resource) {
		d.since = old.since
	}
	next.set(name, d)
	next.added[name] = true
	next.put = append(next.put, resource)
}

func (n *change) set(name string, d document) {
	n.remove(name)
	n.documents[name] = d
	n.size += d.size
}

func (n *change) remove(name string) {
	n.size -= n.documents[name].size
	delete(n.documents, name)
}

// warnings returns the warnings of all documents, ordered by name.
func (n *change) warnings() []config.Problem {
	var names []string
	for name, d := range n.documents {
		if len(d.warnings) > 0 {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	var out []config.Problem
	for _, name := range names {
		out = append(out, n.documents[name].warnings...)
	}
	return out
}

func (c *collection) refuseAll(message string) map[string][]config.Problem {
	return map[string][]config.Problem{"": {*c.refuse(config.Key{Kind: c.kind}, "", message)}}
}

// accept makes a valid response the state of the collection. If resync is true, the client must open a new stream to
// receive the valid documents of an earlier response that it rejected.
func (c *collection) accept(u *update, next *change) (resync bool) {
	c.documents, c.size, c.warnings = next.documents, next.size, next.warnings()
	if u.full {
		clear(c.rejected)
		c.synced = true
		return false
	}
	delete(c.rejected, "")
	for _, r := range u.resources {
		delete(c.rejected, r.name)
	}
	for _, name := range u.removed {
		delete(c.rejected, name)
	}
	if !c.incomplete {
		c.synced = true
	}
	return c.incomplete && len(c.rejected) == 0
}

// reject records the problems of a response that was rejected. The accepted documents do not change.
func (c *collection) reject(u *update, problems map[string][]config.Problem) {
	if u.full {
		clear(c.rejected)
	}
	for name, list := range problems {
		if len(c.rejected) < maxRejected {
			c.rejected[name] = list
		}
	}
	c.incomplete = !u.full
}

// describeProblems returns the reason of a NACK. It names each document and field, up to a limit.
func describeProblems(problems map[string][]config.Problem) string {
	var reasons []string
	count := 0
	for _, name := range slices.Sorted(maps.Keys(problems)) {
		for _, p := range problems[name] {
			if p.Severity != config.Error {
				continue
			}
			if count++; count <= maxReasons {
				reasons = append(reasons, describeProblem(p))
			}
		}
	}
	if count > maxReasons {
		reasons = append(reasons, fmt.Sprintf("and %d more problems", count-maxReasons))
	}
	return strings.Join(reasons, "; ")
}

func describeProblem(p config.Problem) string {
	text := string(p.Key.Kind)
	if p.Key.Name != "" {
		text = p.Key.String()
	}
	if p.Field != "" {
		text += ": " + p.Field
	}
	if p.Value != "" {
		text += fmt.Sprintf(": %q", p.Value)
	}
	text += ": " + p.Message
	if p.Remedy != "" {
		text += " (" + p.Remedy + ")"
	}
	if len(text) > maxReason {
		text = strings.ToValidUTF8(text[:maxReason], "") + " …"
	}
	return text
}

// problems returns the problems of the rejected documents, and the warnings of the accepted ones.
func (c *collection) problems() []config.Problem {
	var out []config.Problem
	for _, name := range slices.Sorted(maps.Keys(c.rejected)) {
		out = append(out, c.rejected[name]...)
	}
	return append(out, c.warnings...)
}

// states returns the state of each accepted and each rejected document.
func (c *collection) states() []config.Document {
	var out []config.Document
	for _, name := range slices.Sorted(maps.Keys(c.documents)) {
		d := c.documents[name]
		state := config.InForce
		if len(c.rejected[name]) > 0 {
			state = config.Stale
		}
		out = append(out, config.Document{Key: d.resource.Key, At: d.resource.Origin, State: state, Since: d.since})
	}
	for _, name := range slices.Sorted(maps.Keys(c.rejected)) {
		if _, accepted := c.documents[name]; !accepted && name != "" {
			key := config.Key{Kind: c.kind}
			key.Namespace, key.Name, _ = strings.Cut(name, "/")
			out = append(out, config.Document{Key: key, At: config.Position{File: c.source}, State: config.Refused})
		}
	}
	return out
}
