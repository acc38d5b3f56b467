package archtest

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

// wordFamily is a family of words that comments and documentation avoid, because a standard term is more precise.
type wordFamily struct {
	words    string // alternatives of a regular expression
	instead  string
	marked   bool // limited by maxMarkedUses: most uses hide the actor or the protocol's term
	exactly  bool // case matters: Go is the language
	compiled *regexp.Regexp
}

var wordFamilies = compileFamilies([]wordFamily{
	{words: `say|says|said`, instead: "reports, returns, specifies, logs", marked: true},
	{words: `tell|tells|told`, instead: "logs, notifies, reports, distinguishes", marked: true},
	{words: `ask|asks|asked`, instead: "requests, queries, polls", marked: true},
	{words: `nobody|whoever|somebody`, instead: "the actor: client, peer, process", marked: true},
	{words: `besides?|anew|mend|mends|mended`, instead: "alongside, again, fix", marked: true},
	{words: `stand|stands`, instead: "hangs, exists", marked: true},
	{words: `take|takes|taken`, instead: "accepts, supports, reads"},
	{words: `give|gives|given`, instead: "returns"},
	{words: `others`, instead: "the actor"},
	{words: `go|goes|gone`, instead: "is sent, is removed", exactly: true},
	{words: `come|comes|came`, instead: "arrives, is received"},
	{words: `keep|keeps|kept`, instead: "caches, stores, retains, persists"},
})

// Maximum uses per 10,000 words of comments and documentation: of all families together, and of the marked families.
const (
	maxUses       = 40
	maxMarkedUses = 2
)

func compileFamilies(families []wordFamily) []wordFamily {
	for i, f := range families {
		flags := "(?i)"
		if f.exactly {
			flags = ""
		}
		families[i].compiled = regexp.MustCompile(flags + `\b(?:` + f.words + `)\b`)
	}
	return families
}

// wordCount counts the words of a text and its uses of the avoided families.
type wordCount struct {
	words, uses, marked int
	lines               []string // lines with a marked word, as file:line: text
}

func (c *wordCount) add(d wordCount) {
	c.words, c.uses, c.marked, c.lines = c.words+d.words, c.uses+d.uses, c.marked+d.marked, append(c.lines, d.lines...)
}

func (c *wordCount) rate(uses int) float64 { return 1e4 * float64(uses) / float64(max(1, c.words)) }

func (c *wordCount) exceedsLimit() bool {
	return c.rate(c.uses) > maxUses || c.rate(c.marked) > maxMarkedUses
}

func TestCommentsAndDocsUsePlainWords(t *testing.T) {
	var total wordCount
	for _, file := range sources(t, ".go", ".md") {
		text, err := os.ReadFile(filepath.Join(root(), file))
		if err != nil {
			t.Fatal(err)
		}
		total.add(countWords(file, string(text)))
	}
	if !total.exceedsLimit() {
		return
	}
	t.Errorf("comments and documentation use %.1f avoided words in 10,000 (limit %d), and %.1f marked ones (limit %d); avoid:",
		total.rate(total.uses), maxUses, total.rate(total.marked), maxMarkedUses)
	for _, f := range wordFamilies {
		t.Errorf("  %s: write %s", strings.ReplaceAll(f.words, "|", ", "), f.instead)
	}
	for _, line := range total.lines[:min(len(total.lines), 100)] {
		t.Error(line)
	}
}

func TestWordsAreCountedInCommentsAndProseOnly(t *testing.T) {
	for _, c := range []struct {
		file, text    string
		words, marked int
	}{
		{"a.go", "x := told // the client asks\n", 3, 1},
		{"a.go", "//go:build linux\n// Ask, and Go on.\n", 4, 1},
		{"a.md", "`say` what `ask.go` tells\n", 2, 1},
		{"a.md", "/say say/x say.go standard mended\n", 7, 1},
	} {
		got := countWords(c.file, c.text)
		if got.words != c.words || got.marked != c.marked {
			t.Errorf("%q: %d words, %d marked, want %d and %d", c.text, got.words, got.marked, c.words, c.marked)
		}
	}
	if c := countWords("a.md", strings.Repeat("word ", 2000)+"told"); !c.exceedsLimit() {
		t.Error("five marked words in 10,000 are within the limit")
	}
}

var (
	goComment = regexp.MustCompile(`(?:^|\s)//\s?(.*)`)
	codeSpan  = regexp.MustCompile("`[^`]*`")
	word      = regexp.MustCompile(`[A-Za-z']+`)
)

// countWords counts in a Go file's comments, or in a Markdown file outside code spans.
func countWords(file, text string) (count wordCount) {
	for n, line := range strings.Split(text, "\n") {
		if strings.HasSuffix(file, ".go") {
			m := goComment.FindStringSubmatch(line)
			if m == nil || strings.HasPrefix(m[1], "go:") || strings.HasPrefix(m[1], "nolint") {
				continue
			}
			line = m[1]
		} else {
			line = codeSpan.ReplaceAllString(line, "")
		}
		count.words += len(word.FindAllString(line, -1))
		marked := 0
		for _, f := range wordFamilies {
			uses := f.count(line)
			count.uses += uses
			if f.marked {
				marked += uses
			}
		}
		if marked > 0 {
			count.marked += marked
			count.lines = append(count.lines, fmt.Sprintf("%s:%d: %s", file, n+1, strings.TrimSpace(line)))
		}
	}
	return count
}

// count returns the number of uses in a line. Words within names, paths and addresses are not counted.
func (f wordFamily) count(line string) (uses int) {
	for _, at := range f.compiled.FindAllStringIndex(line, -1) {
		before, after := line[:at[0]], line[at[1]:]
		if endsInName(before) || beginsWithName(after) {
			continue
		}
		uses++
	}
	return uses
}

func endsInName(s string) bool {
	return s != "" && (isNameByte(s[len(s)-1]) || strings.IndexByte("`./-", s[len(s)-1]) >= 0)
}

func beginsWithName(s string) bool {
	return s != "" && (isNameByte(s[0]) || strings.IndexByte("`/-", s[0]) >= 0 || s[0] == '.' && len(s) > 1 && isNameByte(s[1]))
}

func isNameByte(b byte) bool {
	return b == '_' || b < unicode.MaxASCII && (unicode.IsLetter(rune(b)) || unicode.IsDigit(rune(b)))
}
