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

var flagPattern = regexp.MustCompile(`^--?[a-zA-Z][a-zA-Z_-]*`)

func TestEveryCommandInTheDocumentsExistsWithItsFlags(t *testing.T) {
	documents, err := filepath.Glob(filepath.Join(testenv.Root(), "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, document := range append(documents, filepath.Join(testenv.Root(), "README.md")) {
		text, err := os.ReadFile(document)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			line, _, _ = strings.Cut(strings.TrimSpace(line), "#")
			words := strings.Fields(strings.TrimPrefix(line, "$ "))
			if !strings.HasPrefix(line, "$ ") || len(words) < 2 {
				continue
			}
			switch program := filepath.Base(words[0]); program {
			case "pilotfish", "pilotfish-agent":
				checked++
				if problem := findMissing(t, program, words[1:]); problem != "" {
					t.Errorf("%s: %s: %s", filepath.Base(document), strings.TrimSpace(line), problem)
				}
			case "make":
				checked++
				if err := exec.Command("make", "-C", testenv.Root(), "--dry-run", words[1]).Run(); err != nil {
					t.Errorf("%s: make %s: %v", filepath.Base(document), words[1], err)
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
	out, err := exec.Command(testenv.Bin(t, program), words[0], "--help").CombinedOutput()
	if err != nil || !strings.Contains(string(out), program+" "+words[0]) {
		return "there is no such command"
	}
	help := strings.Fields(string(out))
	for _, w := range words[1:] {
		if name := flagPattern.FindString(w); name != "" &&
			!slices.ContainsFunc(help, func(h string) bool { return strings.TrimRight(h, ",") == name }) {
			return "there is no flag " + name
		}
	}
	return ""
}
