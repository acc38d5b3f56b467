package envoy

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

func TestValidateReturnsEnvoysError(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := write("good.yaml", staticBootstrap)
	bad := write("bad.yaml", strings.Replace(staticBootstrap, "address: {socket_address:", "adress: {socket_address:", 1))
	for _, v := range testenv.EnvoyVersions() {
		path := testenv.EnvoyOf(t, v)
		hot := &HotRestart{BaseID: 1, Epoch: 3, Dir: dir}
		if err := Validate(t.Context(), path, Options{ConfigPath: good, HotRestart: hot}); err != nil {
			t.Errorf("Envoy %s: %v", v, err)
		}
		var invalid *InvalidError
		err := Validate(t.Context(), path, Options{ConfigPath: bad})
		if !errors.As(err, &invalid) || !strings.Contains(invalid.Reason, "address is necessary") || strings.Contains(invalid.Reason, "critical") {
			t.Errorf("Envoy %s: %v", v, err)
		}
		if err := Validate(t.Context(), path, Options{ConfigPath: good, Extra: []string{"--what"}}); !errors.As(err, &invalid) || !strings.Contains(invalid.Reason, "--what") {
			t.Errorf("Envoy %s with an unknown flag: %v", v, err)
		}
	}
}
