package archtest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// privateWords are words for which a standard term exists. Identifiers must not contain them.
var privateWords = wordSet(`
	say says said saying tell tells told telling ask asks asked asking asker nobody somebody whoever beside besides anew mend mends mended
	mending stand stands unsaid untold unasked whither astray hasten hastened patience keeper lineage takeover`)

// privateFileWords are words that do not describe the subject of a file: adverbs, verbs in the third person, and
// metaphors.
var privateFileWords = wordSet(`
	again ahead alike alone anew apart asked badluck behind beside besides crowd doors elder elsewhere fight forced hasten hopeless hurry
	instead keep keeper keeping kit learned led ledger liar lineage linger meanwhile mend mentioned narrow occupy odd outside patience
	patient pour settle shelf sight sound standing standin strangers succession tell tells telling told turns unsaid unseen uses whither
	whole withouteffect withoutsecrets world young`)

// bareNames are not allowed as names of functions. A function's name is a verb with its object, a predicate, or an
// accessor's noun.
var bareNames = wordSet(`
	about after again ahead alike alone also anew apart around as astray at away back because before behind below beneath beside besides
	between beyond both by during each either elsewhere enough even ever every everywhere for forth from further hence here in inside
	instead into later least less like many meanwhile more most much nearly never no nothing nowhere of off often on once only onto or
	other others out outside over own per place places rather same since so some somewhere soon still such than that their theirs then
	there thereby these this those through thus till to together too toward towards under until unto up upon what whatever when whence
	where which while whither who whole whom whose why with within without yet
	alien came ended ending gave given gone kept left lost made meant said sent seen sought spent stood taken told took went`)

var limitPrefix = regexp.MustCompile(`^(?i:most|longest|largest|least|fewest|shortest)[A-Z]`)

func wordSet(words string) map[string]bool {
	set := map[string]bool{}
	for _, w := range strings.Fields(words) {
		set[w] = true
	}
	return set
}

func TestFilesAreNamedAfterTheirSubject(t *testing.T) {
	for _, file := range sources(t, ".go") {
		if w := privateWord(strings.Split(strings.TrimSuffix(filepath.Base(file), ".go"), "_"), privateFileWords); w != "" {
			t.Errorf("%s: %q is not a standard term for the file's content", file, w)
		}
	}
}

func TestIdentifiersUseStandardTerms(t *testing.T) {
	declared := 0
	for _, file := range sources(t, ".go") {
		set := token.NewFileSet()
		parsed, err := parser.ParseFile(set, filepath.Join(root(), file), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range declarations(parsed) {
			declared++
			if problem := nameProblem(d); problem != "" {
				t.Errorf("%s:%d: %s: %s", file, set.Position(d.pos).Line, d.name, problem)
			}
		}
	}
	if declared == 0 {
		t.Error("no declaration was checked")
	}
}

func TestNameProblems(t *testing.T) {
	for name, want := range map[string]string{
		"tellPeer": "tell", "peerTold": "told", "HTTPAsker": "asker", "mostConns": "max", "LeastMemory": "min", "of": "verb", "Without": "verb",
		"standardTerm": "", "almost": "", "mask": "", "within": "verb", "leastRequest": "min", "Own": "verb", "IsOwn": "", "maxConns": "",
	} {
		if got := nameProblem(declaration{name: name, isFunc: true}); (want == "") != (got == "") || !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if w := privateWord([]string{"conn", "limit"}, privateFileWords); w != "" {
		t.Errorf("conn_limit: %q", w)
	}
	if w := privateWord([]string{"standing", "linux"}, privateFileWords); w != "standing" {
		t.Errorf("standing_linux: %q", w)
	}
}

type declaration struct {
	name   string
	pos    token.Pos
	isFunc bool
}

// declarations returns the package-level declarations of a file, with methods and the fields of struct types.
func declarations(file *ast.File) (ds []declaration) {
	add := func(isFunc bool, names ...*ast.Ident) {
		for _, n := range names {
			ds = append(ds, declaration{n.Name, n.Pos(), isFunc})
		}
	}
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok {
			add(true, f.Name)
			continue
		}
		for _, spec := range d.(*ast.GenDecl).Specs {
			switch spec := spec.(type) {
			case *ast.ValueSpec:
				add(false, spec.Names...)
			case *ast.TypeSpec:
				add(false, spec.Name)
				switch typ := spec.Type.(type) {
				case *ast.StructType:
					for _, f := range typ.Fields.List {
						add(false, f.Names...)
					}
				case *ast.InterfaceType:
					for _, f := range typ.Methods.List {
						add(true, f.Names...)
					}
				}
			}
		}
	}
	return ds
}

// nameProblem returns what is wrong with a name, or "".
func nameProblem(d declaration) string {
	if limitPrefix.MatchString(d.name) {
		return "a limit begins with max or min"
	}
	words := nameWords(d.name)
	if w := privateWord(words, privateWords); w != "" {
		return fmt.Sprintf("%q has a standard term", w)
	}
	if d.isFunc && len(words) == 1 && bareNames[words[0]] {
		return "a function's name is a verb with its object"
	}
	return ""
}

func privateWord(words []string, private map[string]bool) string {
	if i := slices.IndexFunc(words, func(w string) bool { return private[w] }); i >= 0 {
		return words[i]
	}
	return ""
}

// nameWords splits a name at its capitals and underscores: HTTPAsker is http and asker.
func nameWords(name string) (words []string) {
	runes := []rune(name)
	start := 0
	flush := func(end int) {
		if end > start {
			words = append(words, strings.ToLower(string(runes[start:end])))
		}
		start = end
	}
	for i, r := range runes {
		switch {
		case r == '_':
			flush(i)
			start = i + 1
		case i > start && unicode.IsUpper(r) && (!unicode.IsUpper(runes[i-1]) || i+1 < len(runes) && unicode.IsLower(runes[i+1])):
			flush(i)
		}
	}
	flush(len(runes))
	return words
}
