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
	// maxRejected limits the number of rejected documents of one kind whose problems are stored. A response with this
	// number of invalid documents is refused as a whole.
	maxRejected = 100
	// maxReasons and maxReason limit the number of problems in a NACK, and the length of each.
	maxReasons, maxReason = 10, 1000
)

// collection contains the documents of one kind of a source.
type collection struct {
	decoder
	documents map[string]document // the documents in force, by the name of the resource
	size      int                 // size in bytes of the documents in force in their protobuf encoding
	warnings  []config.Problem    // of the accepted documents, ordered by name
	// synced: the client has at least once had a valid version of all documents of the kind.
	synced bool
	// rejected contains the problems of the documents that were rejected last, by the name of the resource, or by ""
	// if they concern the whole response or a document without a name.
	rejected map[string][]config.Problem
	// incomplete: on this stream, the client refused a whole response of the delta variant, or rejected more documents
	// than it records. The server does not send the documents of that response again on this stream.
	incomplete bool
}

// document is a document in force: the last accepted version of a document, or the denial of a policy of which no
// version was accepted. A denial has no version and no hash.
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

// versions returns the versions of the accepted documents, for a new stream. If the client has never had a valid version
// of all documents of the kind, versions returns nil, so that the server sends all.
func (c *collection) versions() map[string]string {
	if !c.synced {
		return nil
	}
	versions := make(map[string]string, len(c.documents))
	for name, d := range c.documents {
		if !d.resource.Denial {
			versions[name] = d.version
		}
	}
	return versions
}

// change is the effect of a response.
type change struct {
	documents map[string]document // all documents of the kind after the response
	size      int
	put       map[string]*config.Resource // the new and the changed documents
	del       []config.Key
	rejected  map[string][]config.Problem // the problems of the rejected documents, by the name of the resource
	denials   map[string]*config.Resource // the denials of the rejected policies
}

// validate returns the effect of a response: its valid documents, and the problems of the others, of which the last
// accepted versions stay in force. If the whole response is refused, the effect is nil, and refusal has the problems.
// validate does not change c. available is the maximum size in bytes of all documents of the kind.
func (c *collection) validate(u *update, now time.Time, available int) (next *change, refusal map[string][]config.Problem) {
	if len(u.resources) > maxDocuments {
		return nil, c.refuseAll(fmt.Sprintf("%d documents in one response exceed the limit of %d", len(u.resources), maxDocuments))
	}
	next = &change{
		documents: maps.Clone(c.documents), size: c.size, put: map[string]*config.Resource{},
		rejected: map[string][]config.Problem{}, denials: map[string]*config.Resource{},
	}
	if u.full {
		next.documents, next.size = map[string]document{}, 0
	}
	for _, name := range u.removed {
		next.remove(name)
	}
	for _, r := range u.resources {
		if c.validateResource(r, next, now); len(next.rejected) >= maxRejected {
			return nil, next.rejected
		}
	}
	c.retainRejected(next, now)
	switch {
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

// validateResource decodes r and adds the document, or its problems, to next.
func (c *collection) validateResource(r namedResource, next *change, now time.Time) {
	hash := sha256.Sum256(r.body.GetValue())
	if old, ok := c.documents[r.name]; ok && old.hash == hash && r.name != "" {
		old.version = r.version
		next.set(r.name, old)
		return
	}
	resource, problems, policy := c.decode(r.name, r.body)
	if resource == nil {
		name := r.name
		if name == "" && len(problems) > 0 && problems[0].Key.Name != "" {
			name = ResourceName(problems[0].Key)
		}
		next.rejected[name] = append(next.rejected[name], problems...)
		if policy != nil && !c.isAccepted(name) {
			c.denyPolicy(name, policy, next)
		}
		return
	}
	name := ResourceName(resource.Key)
	if next.put[name] != nil {
		next.rejected[name] = append(next.rejected[name], *c.refuse(resource.Key, "metadata.name", "the response has two documents of this name"))
		return
	}
	d := document{version: r.version, hash: hash, size: len(r.body.GetValue()), resource: resource, warnings: problems, since: now}
	if old, ok := c.documents[name]; ok && old.resource.Equal(resource) {
		d.since = old.since
	}
	next.set(name, d)
	next.put[name] = resource
}

// isAccepted reports whether a version of the document was accepted.
func (c *collection) isAccepted(name string) bool {
	d, ok := c.documents[name]
	return ok && !d.resource.Denial
}

// denyPolicy adds the denial of a policy of which no version was accepted, and the finding about it.
func (c *collection) denyPolicy(name string, policy *config.RefusedPolicy, next *change) {
	denied := c.parser.IsDenied(policy)
	problem := policy.NewProblem(c.parser.OnInvalidPolicy, denied)
	problem.At = config.Position{File: c.source}
	next.rejected[name] = append(next.rejected[name], problem)
	if denied {
		denial := *policy.Denial
		denial.Origin = config.Position{File: c.source}
		next.denials[name] = &denial
	}
}

// retainRejected keeps in next what is in force of the rejected documents, or adds the denials of policies. A rejected
// document without a name may be any document, so no document is then removed.
func (c *collection) retainRejected(next *change, now time.Time) {
	for name := range next.rejected {
		delete(next.put, name)
		next.remove(name)
		if denial := next.denials[name]; denial != nil {
			next.set(name, document{resource: denial, since: now})
			next.put[name] = denial
		} else if d, ok := c.documents[name]; ok {
			next.set(name, d)
		}
	}
	if len(next.rejected[""]) == 0 {
		return
	}
	for name, d := range c.documents {
		if _, ok := next.documents[name]; !ok {
			next.set(name, d)
		}
	}
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

// accept makes the effect of a response the state of the collection. If resync is true, the client must open a new
// stream to receive the documents of an earlier response that it refused as a whole.
func (c *collection) accept(u *update, next *change) (resync bool) {
	c.documents, c.size, c.warnings = next.documents, next.size, next.warnings()
	if u.full {
		clear(c.rejected)
		c.incomplete = false
	}
	delete(c.rejected, "")
	for _, r := range u.resources {
		delete(c.rejected, r.name)
	}
	for _, name := range u.removed {
		delete(c.rejected, name)
	}
	c.recordRejected(u, next.rejected)
	if len(c.rejected) > 0 {
		return false
	}
	if !c.incomplete {
		c.synced = true
	}
	return c.incomplete
}

// refuseResponse records the problems of a response that was refused as a whole. The documents in force do not change.
func (c *collection) refuseResponse(u *update, problems map[string][]config.Problem) {
	if u.full {
		clear(c.rejected)
	}
	c.recordRejected(u, problems)
	c.incomplete = !u.full
}

// recordRejected stores the problems of rejected documents, up to maxRejected.
func (c *collection) recordRejected(u *update, problems map[string][]config.Problem) {
	for name, list := range problems {
		if _, known := c.rejected[name]; !known && len(c.rejected) >= maxRejected {
			c.incomplete = c.incomplete || !u.full
			continue
		}
		c.rejected[name] = list
	}
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

// states returns the state of each document that is in force or rejected.
func (c *collection) states() []config.Document {
	var out []config.Document
	for _, name := range slices.Sorted(maps.Keys(c.documents)) {
		d := c.documents[name]
		state := config.InForce
		switch {
		case d.resource.Denial:
			state = config.Denied
		case len(c.rejected[name]) > 0:
			state = config.Stale
		}
		out = append(out, config.Document{Key: d.resource.Key, At: d.resource.Origin, State: state, Since: d.since})
	}
	for _, name := range slices.Sorted(maps.Keys(c.rejected)) {
		if _, inForce := c.documents[name]; !inForce && name != "" {
			key := config.Key{Kind: c.kind}
			key.Namespace, key.Name, _ = strings.Cut(name, "/")
			out = append(out, config.Document{Key: key, At: config.Position{File: c.source}, State: config.Refused})
		}
	}
	return out
}
