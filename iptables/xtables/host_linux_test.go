package xtables

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/testns"
	"github.com/pilotfish-mesh/pilotfish/iptables"
)

func TestApplyDoesNotWaitForTheHostLock(t *testing.T) {
	if !testns.EnterPrivateMounts(t, "mount -t tmpfs tmpfs /run") { // the test must not lock the machine's lock file
		return
	}
	const lock = "/run/xtables.lock"
	f, err := os.OpenFile(lock, os.O_RDONLY|os.O_CREATE, 0o600)
	if err != nil {
		t.Skip(err)
	}
	defer f.Close()
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		t.Skipf("%s: %v", lock, err)
	}
	ns := testns.New(t)
	b := backend(t, ns, Legacy)
	apply(t, b, small(15001)) // with the machine's lock file, it would wait for 30 seconds and fail
	waiting := exec.Command("iptables-legacy", "-w", "1", "-t", "nat", "-S")
	waiting.WaitDelay = 10 * time.Second
	err = ns.Run(waiting.Run)
	if err == nil {
		t.Error("iptables-legacy does not wait for the lock, so the test is ineffective")
	}
}

func TestReadCreatesNoTable(t *testing.T) {
	ns := testns.New(t)
	before := everything(t, ns)
	b := backend(t, ns, "")
	if in, err := b.Read(t.Context()); err != nil || in.Rules != nil {
		t.Errorf("Read returned %+v, %v", in, err)
	}
	_ = b.Name()
	if err := b.Clean(t.Context()); err != nil {
		t.Error(err)
	}
	if after := everything(t, ns); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
	if names, err := b.ns.legacyTables(); err != nil || len(names[iptables.IPv4])+len(names[iptables.IPv6]) > 0 {
		t.Errorf("legacy tables exist: %q, %v", names, err)
	}
}

func TestKernelErrorsNameTheTableAndTheProgram(t *testing.T) {
	ns := testns.New(t)
	b := backend(t, ns, Legacy)
	bad := small(15001)
	bad.Chains[0].Rules[0].Verdict.Chain, bad.Chains[0].Rules[0].Verdict.Action = "ISTIO_NOWHERE", "JUMP"
	err := b.Apply(t.Context(), bad)
	for _, part := range []string{"table nat", "iptables-legacy-restore", "ISTIO_NOWHERE"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%v: it does not contain %s", err, part)
		}
	}
}
