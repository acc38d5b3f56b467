package archtest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// vulnerability is a database entry for a function of the standard library that is vulnerable in every release.
const vulnerability = `{
  "schema_version": "1.3.1", "id": "GO-2026-9999", "summary": "test", "details": "test",
  "modified": "2026-01-01T00:00:00Z", "published": "2026-01-01T00:00:00Z",
  "affected": [{
    "package": {"name": "stdlib", "ecosystem": "Go"},
    "ranges": [{"type": "SEMVER", "events": [{"introduced": "0"}, {"fixed": "1.999.0"}]}],
    "ecosystem_specific": {"imports": [{"path": "fmt", "symbols": [%q]}]}
  }],
  "database_specific": {"url": "https://example.com/"}
}`

func TestVulncheckFailsForReachedVulnerabilityOnly(t *testing.T) {
	for name, c := range map[string]struct {
		symbol string // version.String calls fmt.Sprintf
		code   int
		want   string
	}{
		"the code reaches it": {"Sprintf", 3, "version.String calls fmt.Sprintf"},
		"no code reaches it":  {"Sscanf", 0, "No vulnerabilities found"},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "GO-2026-9999.json"), fmt.Appendf(nil, vulnerability, c.symbol), 0o600); err != nil {
			t.Fatal(err)
		}
		code, out := vulncheck(t, "VULNCHECK_DB=file://"+dir)
		if code != c.code || !strings.Contains(out, c.want) {
			t.Errorf("%s: exit code %d, want %d with %q:\n%s", name, code, c.code, c.want, out)
		}
	}
}

func TestVulncheckOnlyPrintsNoteWithoutDatabase(t *testing.T) {
	// No connection is possible through this proxy: nothing listens on port 1.
	code, out := vulncheck(t, "HTTPS_PROXY=http://127.0.0.1:1")
	if code != 0 || strings.Count(out, "\n") != 1 || !strings.Contains(out, "not checked: the vulnerability database cannot be reached") {
		t.Errorf("exit code %d, want 0 and one line that reports it:\n%s", code, out)
	}
}

func vulncheck(t *testing.T, env string) (code int, output string) {
	t.Helper()
	// The script runs govulncheck with the go command, which may have to download it. The download must not use the
	// proxy in env.
	if out, err := exec.Command("go", "-C", testenv.Root(), "tool", "-modfile=tools/go.mod", "-n", "govulncheck").CombinedOutput(); err != nil {
		t.Fatalf("building govulncheck: %v\n%s", err, out)
	}
	c := exec.Command(filepath.Join(testenv.Root(), "scripts", "vulncheck.sh"), "./version")
	c.Env = append(os.Environ(), env)
	out, err := c.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return c.ProcessState.ExitCode(), string(out)
}
