package agent

import (
	"strings"
	"testing"
)

func TestDryRunAndConfigReportArgumentsWithoutEffect(t *testing.T) {
	t.Parallel()
	s := newSetup(t, "127.101.3.4")
	for _, command := range [][]string{{"proxy", "sidecar", "extra", "--dry-run"}, {"config", "sidecar", "extra"}} {
		out, errOut, code := s.runCommand(t, append(command, "--concurency=2", "--fancy")...)
		if code != 0 {
			t.Errorf("%v: code %d, %s", command, code, errOut)
		}
		for _, want := range []string{
			"warning: flag --concurency is unknown and has no effect; did you mean --concurrency?", "warning: flag --fancy is unknown and has no effect",
			`warning: argument "extra" has no effect`,
		} {
			if !strings.Contains(out, want) {
				t.Errorf("%v does not print %q:\n%s", command, want, out)
			}
		}
	}
}
