package backends

import (
	"errors"
	"log/slog"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/internal/testns"
	"github.com/pilotfish-mesh/pilotfish/iptables"
	"github.com/pilotfish-mesh/pilotfish/iptables/xtables"
)

// Without iptables-legacy-save, legacy tables do not prevent the installation of rules in nftables. Read fails only if
// the rules could be in the unreadable tables.
func TestMissingLegacyProgramIsReported(t *testing.T) {
	if !testns.EnterPrivateMounts(t, "") {
		return
	}
	ns := testns.New(t)
	legacyCommand(t, ns, "iptables-legacy -t nat -N THEIRS")
	log := &testenv.Buffer{}
	b, err := New(Config{NetNS: int(ns.Handle), Logger: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	program, err := exec.LookPath("iptables-legacy-save")
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("/dev/null", program, "", unix.MS_BIND, ""); err != nil { // makes the program not executable
		t.Fatal(err)
	}
	if _, err := b.Read(t.Context()); !errors.Is(err, xtables.ErrNoLegacySave) || !strings.Contains(err.Error(), "install iptables-legacy-save") {
		t.Errorf("Read without rules in nftables: %v", err)
	}
	if err := b.Apply(t.Context(), rules(t, iptables.RedirectMode)); err != nil {
		t.Errorf("Apply: %v", err)
	}
	if in, err := b.Read(t.Context()); err != nil || in.Rules == nil {
		t.Errorf("Read: %+v, %v", in, err)
	}
	if all, err := b.Foreign(t.Context()); !errors.Is(err, xtables.ErrNoLegacySave) {
		t.Errorf("Foreign: %v, %v", all, err)
	}
	if err := b.Clean(t.Context()); err != nil {
		t.Errorf("Clean: %v", err)
	}
	if !strings.Contains(log.String(), "cannot be checked for earlier redirection rules") {
		t.Errorf("the warning is not logged: %s", log)
	}
}
