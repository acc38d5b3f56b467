package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

var (
	flagPattern    = regexp.MustCompile(`^--?[a-zA-Z][a-zA-Z_-]*`)
	commandPattern = regexp.MustCompile(`^[a-z][a-z-]*$`)
	linkPattern    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	codePattern    = regexp.MustCompile("`([^`\n]+)`")
	headingPattern = regexp.MustCompile(`(?m)^#+ +(.+)$`)
	anchorRemoved  = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// readDocuments returns the text of each Markdown file for users and contributors by its path.
func readDocuments(t *testing.T) map[string]string {
	t.Helper()
	documents := map[string]string{}
	for _, pattern := range []string{"*.md", "docs/*.md", "examples/*.md"} {
		paths, err := filepath.Glob(filepath.Join(testenv.Root(), pattern))
		if err != nil || len(paths) == 0 {
			t.Fatalf("%s: %d files, %v", pattern, len(paths), err)
		}
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			documents[path] = string(text)
		}
	}
	return documents
}

func TestEveryCommandInTheDocumentsExistsWithItsFlags(t *testing.T) {
	checked := 0
	for path, text := range readDocuments(t) {
		for line := range strings.Lines(text) {
			line, _, _ = strings.Cut(strings.TrimSpace(line), "#")
			words := strings.Fields(strings.TrimPrefix(line, "$ "))
			if !strings.HasPrefix(line, "$ ") || len(words) < 2 {
				continue
			}
			switch program := filepath.Base(words[0]); program {
			case "pilotfish", "pilotfish-agent":
				checked++
				if problem := findMissing(t, program, words[1:]); problem != "" {
					t.Errorf("%s: %s: %s", filepath.Base(path), strings.TrimSpace(line), problem)
				}
			case "make":
				checked++
				if err := exec.Command("make", "-C", testenv.Root(), "--dry-run", words[1]).Run(); err != nil {
					t.Errorf("%s: make %s: %v", filepath.Base(path), words[1], err)
				}
			}
		}
	}
	if checked < 8 {
		t.Errorf("only %d commands were found in the documents", checked)
	}
}

// findMissing returns the part of a command line that does not exist, or "".
func findMissing(t *testing.T, program string, words []string) string {
	t.Helper()
	help := printHelp(t, program, words[:1])
	if !strings.Contains(help, program+" "+words[0]) {
		return "there is no such command"
	}
	// Subcommands follow until the first argument that is not the name of one.
	for n := 2; n <= len(words) && commandPattern.MatchString(words[n-1]); n++ {
		sub := printHelp(t, program, words[:n])
		if strings.Contains(help, "Available Commands:") && !strings.Contains(help, "\n  "+words[n-1]+" ") && !hasArguments(help, program, words[:n-1]) {
			return "there is no subcommand " + words[n-1]
		}
		help = sub
	}
	options := strings.Fields(help)
	for _, w := range words {
		if w == "--" {
			break // what follows is another program's command line
		}
		if name := flagPattern.FindString(w); name != "" &&
			!slices.ContainsFunc(options, func(o string) bool { return strings.TrimRight(o, ",") == name }) {
			return "there is no flag " + name
		}
	}
	return ""
}

func printHelp(t *testing.T, program string, words []string) string {
	t.Helper()
	out, err := exec.Command(testenv.Bin(t, program), append(slices.Clone(words), "--help")...).CombinedOutput()
	if err != nil {
		return ""
	}
	return string(out)
}

// hasArguments reports whether a command takes arguments, according to the usage line of its help.
func hasArguments(help, program string, words []string) bool {
	usage := "  " + program + " " + strings.Join(words, " ") + " "
	_, rest, found := strings.Cut(help, usage)
	line, _, _ := strings.Cut(rest, "\n")
	return found && strings.IndexFunc(line, func(r rune) bool { return r >= 'A' && r <= 'Z' }) >= 0
}

func TestEveryLinkInTheDocumentsLeadsToAFileAndAHeading(t *testing.T) {
	documents, checked := readDocuments(t), 0
	for path, text := range documents {
		for _, m := range linkPattern.FindAllStringSubmatch(text, -1) {
			if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
				continue
			}
			checked++
			file, anchor, _ := strings.Cut(m[1], "#")
			target := path
			if file != "" {
				target = filepath.Join(filepath.Dir(path), file)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: the link %s leads to no file", filepath.Base(path), m[1])
			} else if anchor != "" && !slices.Contains(findAnchors(documents[target]), anchor) {
				t.Errorf("%s: the link %s leads to no heading", filepath.Base(path), m[1])
			}
		}
	}
	if checked < 20 {
		t.Errorf("only %d links were found in the documents", checked)
	}
}

// findAnchors returns the anchors that GitHub generates for the headings of a document.
func findAnchors(text string) []string {
	var anchors []string
	for _, m := range headingPattern.FindAllStringSubmatch(text, -1) {
		anchors = append(anchors, strings.ReplaceAll(anchorRemoved.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-"))
	}
	return anchors
}

// The architecture and the notes for contributors lead a reader to files. A renamed file must not be left in them.
func TestEverySourcePathInTheDocumentsExists(t *testing.T) {
	entries, err := os.ReadDir(testenv.Root())
	if err != nil {
		t.Fatal(err)
	}
	folders := map[string]bool{}
	for _, e := range entries {
		folders[e.Name()] = e.IsDir()
	}
	checked := 0
	for path, text := range readDocuments(t) {
		if filepath.Base(path) == "CHANGELOG.md" {
			continue // names what an older version had
		}
		for _, m := range codePattern.FindAllStringSubmatch(text, -1) {
			if first, _, found := strings.Cut(m[1], "/"); !found || !folders[first] || strings.ContainsAny(m[1], " :") {
				continue
			}
			checked++
			if found, err := filepath.Glob(filepath.Join(testenv.Root(), m[1])); err != nil || len(found) == 0 {
				t.Errorf("%s: `%s` does not exist", filepath.Base(path), m[1])
			}
		}
	}
	if checked < 50 {
		t.Errorf("only %d paths were found in the documents", checked)
	}
}
