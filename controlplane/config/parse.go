package config

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// Limits of one file. They are far above practical sizes. They limit the memory that parsing an invalid file needs.
const (
	MaxFileSize   = 16 << 20 // bytes
	maxDocuments  = 20_000   // per file
	maxNesting    = 64       // depth of mappings and lists
	maxExpansion  = 200_000  // values that aliases may add to one document
	maxListNested = 4        // depth of documents of kind List
)

// Parser parses and validates the documents of files.
type Parser struct {
	// DefaultNamespace is the namespace of documents that specify none; "default" if empty.
	DefaultNamespace string
	// Check validates each document in which the parser found no error. It finds problems that this package cannot
	// detect, for example values that Envoy rejects. A problem of severity Error refuses the document. If Check is nil,
	// the parser skips this step.
	Check func(*Resource) []Problem
	// StartsProxies is set if the control plane starts the proxies itself. ProxyConfigs then apply when proxies start.
	StartsProxies bool
	// OnInvalidPolicy selects the effect of a refused policy of which no version was ever accepted.
	OnInvalidPolicy OnInvalidPolicy
}

// Parse parses a file with the default Parser.
func Parse(file string, data []byte) ([]*Resource, []Problem) { return Parser{}.Parse(file, data) }

// Parse parses the documents of one file, YAML or JSON. It returns the valid resources and the problems of all
// documents. An invalid document (a Problem of severity Error) does not affect the other documents. If two documents
// have the same key, the first is returned, and the second is an error. file is used only in the positions of problems.
func (p Parser) Parse(file string, data []byte) ([]*Resource, []Problem) {
	f := p.ParseFile(file, data)
	var resources []*Resource
	for _, d := range f.Documents {
		if d.Resource != nil {
			resources = append(resources, d.Resource)
		}
	}
	for _, policy := range f.Policies {
		f.Problems = append(f.Problems, policy.NewProblem(p.OnInvalidPolicy, p.IsDenied(policy)))
	}
	return resources, f.Problems
}

// IsDenied reports whether all traffic to the workloads of policy is denied until a version of policy is accepted.
func (p Parser) IsDenied(policy *RefusedPolicy) bool {
	return policy.Denial != nil && p.OnInvalidPolicy != IgnoreInvalid
}

// ParsedFile is the result of parsing a file.
type ParsedFile struct {
	// Documents contains the documents whose kind or name could be read, in the order of the text. It omits duplicates
	// of earlier resources, which Problems reports.
	Documents []ParsedDocument
	Problems  []Problem // of all documents, without the results of RefusedPolicy.NewProblem
	// Incomplete is set if the file contains a document that cannot be identified. It could be the new version of any
	// resource, so no resource of the file may be considered removed.
	Incomplete bool
	// Unreadable is set if a part of the text could not be parsed.
	Unreadable bool
	Policies   []*RefusedPolicy // the refused policies, in the order of the text
}

// ParsedDocument is the result of parsing one document. Resource is nil if the document is refused or its kind has no
// effect.
type ParsedDocument struct {
	Key         Key
	At          Position
	Resource    *Resource
	Inert       bool // the kind has no effect in this mesh
	UnknownKind bool // the kind is unknown, so the author may have meant any kind
}

// ParseFile parses the documents of one file, YAML or JSON. file is used only in positions. Unlike Parse, ParseFile
// also returns the refused documents.
func (p Parser) ParseFile(file string, data []byte) *ParsedFile {
	if p.DefaultNamespace == "" {
		p.DefaultNamespace = "default"
	}
	f := &fileParser{Parser: p, file: file, out: &ParsedFile{}, seen: map[Key]Position{}}
	if problem := f.checkText(data); problem != nil {
		f.addUnreadable(*problem)
		return f.out
	}
	if roots, ok := readJSON(data); ok {
		for _, root := range roots {
			f.readDocument(root, 0, 0)
		}
		return f.out
	}
	for _, c := range splitDocuments(data) {
		f.readChunk(c)
	}
	return f.out
}

type fileParser struct {
	Parser
	file          string
	out           *ParsedFile
	seen          map[Key]Position
	count         int
	limitReported bool // exceeding maxDocuments was reported
}

// addUnreadable records that a part of the file could not be parsed.
func (f *fileParser) addUnreadable(p Problem) {
	p.Code, p.Severity = Unreadable, Error
	p.At.File = f.file
	f.out.Problems = append(f.out.Problems, p)
	f.out.Incomplete, f.out.Unreadable = true, true
}

func (f *fileParser) checkText(data []byte) *Problem {
	if len(data) > MaxFileSize {
		return &Problem{
			Message: fmt.Sprintf("the file is larger than %d MiB", MaxFileSize>>20),
			Remedy:  "split it into several files",
		}
	}
	if utf8.Valid(data) {
		return nil
	}
	line, column := 1, 1
	for rest := data; ; {
		r, size := utf8.DecodeRune(rest)
		if r == utf8.RuneError && size <= 1 {
			break
		}
		column++
		if r == '\n' {
			line, column = line+1, 1
		}
		rest = rest[size:]
	}
	return &Problem{At: Position{Line: line, Column: column}, Message: "not UTF-8 text", Remedy: "save the file as UTF-8"}
}

func (f *fileParser) readChunk(c chunk) {
	nodes, err := readYAML(c.text)
	for _, node := range nodes {
		f.readDocument(node, c.line, 0)
	}
	if err != nil {
		f.addUnreadable(syntaxProblem(c, err))
	}
}

// readDocument reads one document, or each document of a List. offset is the number of lines before the parsed text,
// and nested is the number of enclosing Lists.
func (f *fileParser) readDocument(root *yaml.Node, offset, nested int) {
	d := &document{file: f.file, offset: offset, positions: map[string]Position{}, startsProxies: f.StartsProxies}
	if f.count++; f.count > maxDocuments {
		if !f.limitReported {
			f.limitReported = true
			f.addUnreadable(Problem{
				At:      d.nodePosition(root),
				Message: fmt.Sprintf("the file has more than %d documents; the control plane does not read the others", maxDocuments), Remedy: "split it into several files",
			})
		}
		return
	}
	if nested == 0 && !d.checkSize(root) {
		f.addRefusedPolicy(d, root)
		f.addDocument(d, nil)
		return
	}
	head := d.readHeader(root, f.DefaultNamespace)
	if head.items != nil && nested < maxListNested {
		f.out.Problems = append(f.out.Problems, d.sortedProblems()...)
		for _, item := range head.items.Content {
			f.readDocument(followAlias(item), offset, nested+1)
		}
		return
	}
	r := d.read(head, f.Check)
	if d.refused {
		d.recordHosts(head.spec)
	}
	f.addRefusedPolicy(d, root)
	f.addDocument(d, r)
}

// recordHosts records the hosts of a refused document in its problems. A finding about an unknown host can then name
// this document as the cause.
func (d *document) recordHosts(spec *yaml.Node) {
	var hosts []string
	switch d.key.Kind {
	case ServiceEntry:
		if list := mappingField(spec, "hosts"); list != nil && list.Kind == yaml.SequenceNode {
			for _, host := range list.Content {
				hosts = append(hosts, followAlias(host).Value)
			}
		}
	case DestinationRule:
		hosts = append(hosts, scalarOf(spec, "host"))
	}
	for i := range d.problems {
		d.problems[i].Hosts = strings.Join(hosts, " ")
	}
}

// addRefusedPolicy records the document if it is a refused policy.
func (f *fileParser) addRefusedPolicy(d *document, root *yaml.Node) {
	if !d.refused {
		return
	}
	if p := d.readRefusedPolicy(root, f.DefaultNamespace); p != nil {
		f.out.Policies = append(f.out.Policies, p)
	}
}

// addDocument records the result of a document and its problems. r is nil if the document is refused or has no effect.
// A duplicate of an earlier document is refused here.
func (f *fileParser) addDocument(d *document, r *Resource) {
	if d.key.Name != "" && !d.inert && !d.invalidName && !d.unknownKind {
		if first, taken := f.seen[d.key]; taken {
			d.reportAs(DuplicateName, d.key.Kind.DuplicateSeverity(), d.fieldPosition("metadata.name"), "metadata.name", d.key.Name, fmt.Sprintf("a %s with this name already exists at %s and takes precedence", d.key.Kind, first),
				d.key.Kind.DuplicateRemedy())
			f.out.Problems = append(f.out.Problems, d.sortedProblems()...)
			return
		}
		f.seen[d.key] = d.origin
	}
	f.out.Problems = append(f.out.Problems, d.sortedProblems()...)
	if d.refused && (d.invalidName || d.key.Name == "") {
		f.out.Incomplete = true
	}
	if d.key.Kind != "" || d.key.Name != "" {
		f.out.Documents = append(f.out.Documents, ParsedDocument{Key: d.key, At: d.origin, Resource: r, Inert: d.inert, UnknownKind: d.unknownKind})
	}
}
