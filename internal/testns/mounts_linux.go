package testns

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// ownMounts is set in the process that has mounts of its own.
const ownMounts = "PILOTFISH_TEST_OWN_MOUNTS"

// EnterPrivateMounts reports whether the test runs in a mount namespace of its own. If not, it has run the test again in a
// process with one, after the shell command first, and the caller returns. The test is skipped without the privilege.
func EnterPrivateMounts(t *testing.T, first string) bool {
	t.Helper()
	if os.Getenv(ownMounts) != "" {
		return true
	}
	if os.Geteuid() != 0 {
		t.Skip("only root can mount")
	}
	if first != "" {
		first += " && "
	}
	again := exec.Command("unshare", "--mount", "sh", "-c", first+`exec "$0" -test.v -test.run "^$1\$"`, os.Args[0], t.Name())
	again.Env = append(os.Environ(), ownMounts+"=yes")
	if out, err := again.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS") {
		t.Errorf("with mounts of its own: %v:\n%s", err, out)
	}
	return false
}
