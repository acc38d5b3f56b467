package testns

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// inPrivateMounts is the environment variable that is set in a process with a private mount namespace.
const inPrivateMounts = "PILOTFISH_TEST_OWN_MOUNTS"

// EnterPrivateMounts returns true if the test runs in a private mount namespace. Otherwise it starts a process with
// such a namespace, which runs the shell command setup, and then the test again. It then returns false, and the caller
// must return. Without root privileges, the test is skipped.
func EnterPrivateMounts(t *testing.T, setup string) bool {
	t.Helper()
	if os.Getenv(inPrivateMounts) != "" {
		return true
	}
	if os.Geteuid() != 0 {
		t.Skip("only root can mount")
	}
	if setup != "" {
		setup += " && "
	}
	again := exec.Command("unshare", "--mount", "sh", "-c", setup+`exec "$0" -test.v -test.run "^$1\$"`, os.Args[0], t.Name())
	again.Env = append(os.Environ(), inPrivateMounts+"=yes")
	if out, err := again.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS") {
		t.Errorf("in a private mount namespace: %v:\n%s", err, out)
	}
	return false
}
