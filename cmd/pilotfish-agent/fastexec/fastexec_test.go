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
		line, rest string
		is         bool
	}{
		{"pilotfish-agent iptables -b *", "-b *", true},
		{"/usr/local/bin/pilot-agent istio-iptables --dry-run", "--dry-run", true},
		{"/bin/istio-iptables -p 1", "-p 1", true},
		{"pilotfish-agent iptables", "", true},
		{"pilotfish-agent proxy sidecar iptables", "", false},
		{"pilotfish-agent", "", false},
		{"", "", false},
	} {
		rest, is := redirectionArgs(strings.Fields(c.line))
		if is != c.is || strings.Join(rest, " ") != c.rest {
			t.Errorf("%q: %q %v", c.line, rest, is)
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
