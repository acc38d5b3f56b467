package fastexec

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestOnlyIptablesCommandIsExecuted(t *testing.T) {
	for _, c := range []struct {
		line string
		want []string
	}{
		{"pilotfish-agent iptables -b *", []string{"pilotfish-agent iptables", "-b", "*"}},
		{"/usr/local/bin/pilot-agent istio-iptables --dry-run", []string{"pilot-agent istio-iptables", "--dry-run"}},
		{"/bin/istio-iptables -p 1", []string{"istio-iptables", "-p", "1"}},
		{"pilotfish-agent iptables", []string{"pilotfish-agent iptables"}},
		{"pilotfish-agent proxy sidecar iptables", nil},
		{"pilotfish-agent", nil},
		{"", nil},
	} {
		if got := redirectionArgs(strings.Fields(c.line)); !slices.Equal(got, c.want) {
			t.Errorf("%q: %q, want %q", c.line, got, c.want)
		}
	}
}

// The arguments that are read before os is initialized must be equal to os.Args.
func TestArgumentsMatchProcessArguments(t *testing.T) {
	if _, err := os.Stat("/proc/self/cmdline"); err != nil {
		t.Skip(err)
	}
	if got := arguments(); !slices.Equal(got, os.Args) {
		t.Errorf("%q, not %q", got, os.Args)
	}
	self, err := os.Executable()
	if got := executable(); err != nil || got != self || folder(got) != filepath.Dir(self)+"/" || base(got) != filepath.Base(self) {
		t.Errorf("%q, not %q (%v)", got, self, err)
	}
	if got := split([]byte("a\x00\x00b c\x00")); !slices.Equal(got, []string{"a", "", "b c"}) {
		t.Errorf("%q", got)
	}
}
