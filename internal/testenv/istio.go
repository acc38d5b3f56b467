package testenv

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// IstioSource returns the directory of the source code of the Istio version that the tests compare with. It skips the
// test if the code is not in the module cache.
func IstioSource(t testing.TB) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "istio.io/istio")
	cmd.Dir = filepath.Join(Root(), "e2e", "istio", "istiod")
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOPROXY=off", "GOFLAGS=-mod=mod")
	out, err := cmd.Output()
	dir := strings.TrimSpace(string(out))
	if err != nil || dir == "" {
		t.Skipf("Istio's source code is not in the module cache (%v); `make istiod` downloads it", err)
	}
	return dir
}
