package config

import (
	"fmt"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// Bounds on what one file may hold. They are far above what people write, and keep a hostile or mistaken file from
// costing more than its own size.
const (
	MaxFileSize   = 16 << 20 // bytes
	MaxDocuments  = 20_000   // a file
	MaxNesting    = 64       // mappings and lists in one another
	maxExpansion  = 200_000  // values of one document more than are written, once its aliases are followed
	maxListNested = 4        // documents of kind List in one another
)

// Parser reads the documents of files.
type Parser struct {
	// DefaultNamespace is the namespace of documents that name none; "default" when empty.
	DefaultNamespace string
	// Check looks at each document that is good so far, for what this package cannot know: whether Envoy has what it
	// speaks of. A problem of severity Error refuses the document. Nil checks nothing.
	Check func(*Resource) []Problem
	// StartsProxies: what ProxyConfigs say is in force when proxies start, since it is the reader who starts them.
	StartsProxies bool
}

// Parse reads the documents of one file, as Parser.Parse does, with "default" as the namespace of those that name none.
func Parse(file string, data []byte) ([]*Resource, []Problem) { return Parser{}.Parse(file, data) }

// Parse reads the documents of one file, YAML or JSON, and gives those that are good and what is to be said of all.
// A bad document (a Problem of severity Error) is left out by itself. Of two documents of one name the first is taken.
// file is only used to say where something stands.
func (p Parser) Parse(file string, data []byte) ([]*Resource, []Problem) {
	f := p.parse(file, data)
	var resources []*Resource
	for _, d := range f.documents {
		if d.resource != nil {
			resources = append(resources, d.resource)
		}
	}
	return resources, f.problems
}

// parsedFile is all that a file says.
type parsedFile struct {
	documents []parsedDocument
	problems  []Problem
	// blind is set when something in the file could not be read so far as to know which resources it holds.
	blind bool
}

// parsedDocument is what became of one document. Of those with a name, resource is nil when it was refused.
type parsedDocument struct {
	key      Key
	at       Position
	resource *Resource
	inert    bool // it has no effect here by its kind
	kindless bool // its kind is not known, and might be meant to be any
}

func (p Parser) parse(file string, data []byte) *parsedFile {
	if p.DefaultNamespace == "" {
		p.DefaultNamespace = "default"
	}
	f := &fileParser{Parser: p, file: file, out: &parsedFile{}, seen: map[Key]Position{}}
	if problem := f.unreadable(data); problem != nil {
		f.refuse(*problem)
		return f.out
	}
	if roots, ok := readJSON(data); ok {
		for _, root := range roots {
			f.document(root, 0, 0)
		}
		return f.out
	}
	for _, c := range splitDocuments(data) {
		f.chunk(c)
	}
	return f.out
}

type fileParser struct {
	Parser
	file  string
	out   *parsedFile
	seen  map[Key]Position
	count int
	full  bool // MaxDocuments has been told of
}

// refuse records that something could not be read at all.
func (f *fileParser) refuse(p Problem) {
	p.Code, p.Severity = Unreadable, Error
	p.At.File = f.file
	f.out.problems = append(f.out.problems, p)
	f.out.blind = true
}

func (f *fileParser) unreadable(data []byte) *Problem {
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

func (f *fileParser) chunk(c chunk) {
	nodes, err := readYAML(c.text)
	for _, node := range nodes {
		f.document(node, c.line, 0)
	}
	if err != nil {
		f.refuse(syntaxProblem(c, err))
	}
}

// document reads one document, or each of a List.
func (f *fileParser) document(root *yaml.Node, offset, nested int) {
	d := &document{file: f.file, offset: offset, places: map[string]Position{}, startsProxies: f.StartsProxies}
	if f.count++; f.count > MaxDocuments {
		if !f.full {
			f.full = true
			f.refuse(Problem{
				At:      d.at(root),
				Message: fmt.Sprintf("the file has more than %d documents; the rest is not read", MaxDocuments), Remedy: "split it into several files",
			})
		}
		return
	}
	if nested == 0 && !d.bounded(root) {
		f.finish(d, nil)
		return
	}
	head := d.readHead(root, f.DefaultNamespace)
	if head.items != nil && nested < maxListNested {
		f.out.problems = append(f.out.problems, d.named()...)
		for _, item := range head.items.Content {
			f.document(resolve(item), offset, nested+1)
		}
		return
	}
	f.finish(d, d.read(head, f.Check))
}

// finish records what became of a document: accepted with a resource, refused without.
func (f *fileParser) finish(d *document, r *Resource) {
	if d.key.Name != "" && !d.inert && !d.nameless && !d.kindless {
		if first, taken := f.seen[d.key]; taken {
			d.refuseAs(DuplicateName, d.place("metadata.name"), "metadata.name", d.key.Name, fmt.Sprintf("there is a %s of this name already, at %s, which is the one that counts", d.key.Kind, first),
				"rename one of the two, or remove it")
			f.out.problems = append(f.out.problems, d.named()...)
			return
		}
		f.seen[d.key] = d.origin
	}
	f.out.problems = append(f.out.problems, d.named()...)
	if d.refused && (d.nameless || d.key.Name == "") {
		f.out.blind = true
	}
	if d.key.Kind != "" || d.key.Name != "" {
		f.out.documents = append(f.out.documents, parsedDocument{key: d.key, at: d.origin, resource: r, inert: d.inert, kindless: d.kindless})
	}
}
