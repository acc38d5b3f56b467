package translate_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/pilotfish-mesh/pilotfish/controlplane/analysis"
	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/translate"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
	"github.com/pilotfish-mesh/pilotfish/internal/meshfuzz"
)

var malformed = flag.Int("malformed", 1500, "number of malformed documents")

// documentMutator makes malformed documents from valid documents of all kinds.
type documentMutator struct {
	*rand.Rand
	documents [][]byte
	values    map[string][]any // values by field name
}

func newDocumentMutator(t *testing.T, seed uint64) *documentMutator {
	b := &documentMutator{Rand: rand.New(rand.NewPCG(seed, 3)), values: map[string][]any{}}
	m := meshfuzz.New(seed, meshfuzz.Options{Disruptive: true})
	for range 300 {
		if e := m.Edit(); e.Document != nil {
			b.documents = append(b.documents, e.Document)
		}
	}
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if strings.Contains(file, ".golden.") {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, document := range strings.Split(string(text), "\n---\n") {
			b.documents = append(b.documents, []byte(document))
		}
	}
	for _, document := range b.documents {
		var o any
		if json.Unmarshal(document, &o) == nil {
			b.collect(o)
		}
	}
	return b
}

func (b *documentMutator) collect(v any) {
	switch v := v.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			b.values[key] = append(b.values[key], v[key])
			b.collect(v[key])
		}
	case []any:
		for _, one := range v {
			b.collect(one)
		}
	}
}

// next mutates a document in one to four places.
func (b *documentMutator) next() []byte {
	document := slices.Clone(b.documents[b.IntN(len(b.documents))])
	for range 1 + b.IntN(3) {
		var o any
		if b.IntN(4) > 0 && json.Unmarshal(document, &o) == nil {
			if text, err := json.Marshal(b.value(o)); err == nil {
				document = text
			}
			continue
		}
		document = b.text(document)
	}
	// The separator of documents is not mutated.
	return []byte(strings.ReplaceAll(string(document), "---", "- --"))
}

// text mutates bytes.
func (b *documentMutator) text(text []byte) []byte {
	if len(text) == 0 {
		return text
	}
	i, j := b.IntN(len(text)), b.IntN(len(text))
	i, j = min(i, j), min(max(i, j), min(i, j)+20)
	switch b.IntN(5) {
	case 0:
		return slices.Delete(text, i, j)
	case 1:
		return slices.Insert(text, i, slices.Clone(text[i:j])...)
	case 2:
		text[i] = byte(b.IntN(256))
	case 3:
		return slices.Insert(text, i, []byte(oddTexts[b.IntN(len(oddTexts))])...)
	case 4:
		return text[:max(i, len(text)/2)]
	}
	return text
}

var oddTexts = []string{"{", "}", "[", "\"", ": ", "\n", "&a ", "*a ", "<<: ", "!!binary ", "|\n", "\x00", "\t", "é", "🐟", "null", "- ", "#", "0x7f", "1e400", "~"}

// value mutates one nested value.
func (b *documentMutator) value(v any) any {
	if b.IntN(12) == 0 {
		return b.odd()
	}
	switch v := v.(type) {
	case map[string]any:
		keys := slices.Sorted(maps.Keys(v))
		if len(keys) == 0 {
			return b.odd()
		}
		key := keys[b.IntN(len(keys))]
		switch b.IntN(16) {
		case 0:
			delete(v, key)
		case 1:
			v[key+"x"] = v[key]
		case 2, 3, 4, 5, 6: // replace the value by one from another document
			if others := b.values[key]; len(others) > 0 {
				v[key] = others[b.IntN(len(others))]
			}
		default:
			v[key] = b.value(v[key])
		}
	case []any:
		if len(v) == 0 {
			return b.odd()
		}
		i := b.IntN(len(v))
		if b.IntN(8) == 0 {
			return append(v, v[i])
		}
		v[i] = b.value(v[i])
	default:
		return b.odd()
	}
	return v
}

func (b *documentMutator) odd() any {
	return []any{
		nil, true, -1, 0, 1, 65536, 1 << 40, 0.5, 1e300, "", "*", ".", "-1s", "0s", "10000000h", "a/b/c", "*.", "..", strings.Repeat("x", 300),
		"\n", "(", "%REQ(%", []any{}, []any{nil}, map[string]any{}, map[string]any{"": ""}, "::1", "0.0.0.0/0", "shared.example.net", "s0.ns0.svc.cluster.local",
	}[b.IntN(30)]
}

// TestMalformedDocumentsAreIsolated: a malformed document is refused or accepted without effect on other documents in
// its file. The resources obey Envoy's validation rules. The removal of the document restores the previous state.
func TestMalformedDocumentsAreIsolated(t *testing.T) {
	t.Parallel()
	b := newDocumentMutator(t, 1)
	m := newMalformedMesh(t)
	taken := 0
	for i := range *malformed {
		document := b.next()
		r := m.parseWithValid(t, i, document)
		if r == nil {
			continue
		}
		taken++
		m.applyAndRemove(t, i, document, r)
		if t.Failed() {
			return
		}
	}
	t.Logf("%d of %d malformed documents were accepted, so the test does not cover both outcomes", taken, *malformed)
}

// malformedMesh is a mesh to which malformed documents are added.
type malformedMesh struct {
	*testMesh
	proxies []*translate.Proxy
	before  []map[string]map[string]string
	made    map[string]bool // resource versions that have been checked
}

func newMalformedMesh(t *testing.T) *malformedMesh {
	m := &malformedMesh{testMesh: newTestMesh(t, nil), made: map[string]bool{}}
	edits := meshfuzz.New(3, meshfuzz.Options{Services: 4, Permanent: 4})
	for _, e := range edits.Documents() {
		m.store.Put(parse(t, string(e.Document))...)
	}
	m.rebuild(nil)
	for _, i := range []int{0, 1, 4, 6} {
		p := proxy(t, editedProxies[i])
		m.proxies, m.before = append(m.proxies, p), append(m.before, versions(t, m.snap, p))
	}
	return m
}

const (
	goodBefore = `{apiVersion: v1, kind: Service, metadata: {name: before, namespace: good}, spec: {ports: [{port: 80}]}}`
	goodAfter  = `{apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {name: after, namespace: good}, spec: {hosts: [good.example.com], ports: [{number: 80, name: http, protocol: HTTP}], resolution: DNS}}`
)

// parseWithValid parses the document in a file between two valid ones, and returns the accepted resources.
func (m *malformedMesh) parseWithValid(t *testing.T, i int, document []byte) (taken []*config.Resource) {
	t.Helper()
	resources, problems := config.Parse("odd.yaml", []byte(goodBefore+"\n---\n"+string(document)+"\n---\n"+goodAfter+"\n"))
	good := 0
	for _, r := range resources {
		if r.Namespace == "good" {
			good++
		} else {
			taken = append(taken, r)
		}
	}
	// Invalid UTF-8 invalidates the whole file.
	if good != 2 && !slices.ContainsFunc(problems, func(p config.Problem) bool { return strings.Contains(p.Message, "UTF-8") }) {
		t.Fatalf("document %d: of the 2 valid documents in its file, %d are accepted:\n%s\n%v", i, good, document, problems)
	}
	return taken
}

// applyAndRemove adds the documents to the mesh and removes them.
func (m *malformedMesh) applyAndRemove(t *testing.T, i int, document []byte, taken []*config.Resource) {
	t.Helper()
	defer func() {
		if p := recover(); p != nil {
			t.Fatalf("document %d: %v\n%s", i, p, document)
		}
	}()
	var old []*config.Resource
	for _, r := range taken {
		if was := m.store.Get(r.Key); was != nil {
			old = append(old, was)
		}
	}
	m.store.Put(taken...)
	m.rebuild(keys(taken))
	_ = analysis.Check(m.snap)
	for _, p := range m.proxies {
		m.valid(t, m.snap, p, fmt.Sprintf("document %d\n%s", i, document))
	}
	m.store.Delete(keys(taken)...)
	m.store.Put(old...)
	m.rebuild(keys(taken))
	for j, p := range m.proxies {
		after := versions(t, m.snap, p)
		for _, typeURL := range xds.Order {
			if names := differing(m.before[j][typeURL], after[typeURL]); len(names) > 0 {
				t.Errorf("document %d: after its removal, %v differ from the state before it was added\n%s", i, names, document)
			}
		}
	}
}

// valid checks a proxy's resources against the validation rules of Envoy's messages.
func (m *malformedMesh) valid(t *testing.T, s *snapshot.Snapshot, p *translate.Proxy, what string) {
	t.Helper()
	for _, typeURL := range xds.Order {
		resources, err := generate(s, p, typeURL, nil)
		if err != nil {
			t.Fatalf("%s\n%v", what, err)
		}
		for _, r := range resources {
			if m.made[r.Version] || typeURL == xds.NameTableType {
				continue
			}
			m.made[r.Version] = true
			message, err := r.Body.UnmarshalNew()
			if err == nil {
				err = allowed(message)
			}
			if err != nil {
				t.Errorf("%s\n%s: %v", what, r.Name, err)
			}
		}
	}
}

func allowed(m proto.Message) error {
	if v, ok := m.(interface{ ValidateAll() error }); ok {
		return v.ValidateAll()
	}
	return nil
}
