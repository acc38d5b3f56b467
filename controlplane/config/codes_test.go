package config_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

var update = flag.Bool("update", false, "write the table of codes into docs/findings.md")

func TestEveryCodeIsInTheDocuments(t *testing.T) {
	file := filepath.Join(testenv.Root(), "docs", "findings.md")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	const head = "| code | name | what it means | what to do |\n|---|---|---|---|\n"
	before, _, ok := strings.Cut(string(text), head)
	if !ok {
		t.Fatal("docs/findings.md has no table of codes")
	}
	want := before + head
	for _, c := range config.Codes() {
		want += fmt.Sprintf("| %s | %s | %s | %s |\n", c.Code, c.Name, c.Meaning, c.Remedy)
	}
	if *update {
		err = os.WriteFile(file, []byte(want), 0o600)
	} else if want != string(text) {
		t.Error("the table of docs/findings.md is not that of the codes: go test ./controlplane/config -run Code -update")
	}
	if err != nil {
		t.Fatal(err)
	}
}
