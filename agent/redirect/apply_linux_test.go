package redirect

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/internal/testns"
)

// newPod creates a network namespace with an interface that is not connected to any other, and returns the namespace's
// path for --network-namespace.
func newPod(t *testing.T, addresses ...string) string {
	t.Helper()
	ns := testns.New(t)
	ns.Links(t, func(h *netlink.Handle) error {
		link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "far0"}
		if err := h.LinkAdd(link); err != nil {
			return err
		}
		for _, text := range addresses {
			a, err := netlink.ParseAddr(text)
			if err != nil {
				return err
			}
			a.Flags |= 0x02 // IFA_F_NODAD
			if err := h.AddrAdd(link, a); err != nil {
				return err
			}
		}
		return h.LinkSetUp(link)
	})
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), int(ns.Handle))
}

// With --live, explain selects a user that no installed rule matches, even if its options would install other rules.
func TestLiveExplainDefaultsToUnmatchedUser(t *testing.T) {
	path := newPod(t, "10.0.0.5/24")
	p := newMachine(t, nil, nil)
	for applied, want := range map[string]string{
		"-u 1000 -g 1001": "sent by uid 1002, gid 1002",
		"-u 1337":         "sent by uid 1000, gid 1000",
	} {
		args := append(strings.Fields(applied), "-b", "*", "-i", "*", "--network-namespace", path)
		if _, log, err := execute(t, p, args...); err != nil {
			t.Fatalf("%v\n%s", err, log)
		}
		text, _, err := execute(t, p, "explain", "--live", "--to", "10.9.9.9:80", "--network-namespace", path)
		if err != nil || !strings.Contains(text, want) || !strings.Contains(text, "(outbound/all)") {
			t.Errorf("with the installed rules of %s: %v\n%s\nwant %s", applied, err, text, want)
		}
	}
}

func TestApplyShowExplainAndCleanWorkOnTheSameNamespace(t *testing.T) {
	path := newPod(t, "10.0.0.5/24", "fd00::5/64")
	p := newMachine(t, nil, nil)
	saved := filepath.Join(t.TempDir(), "saved.json")
	run := func(args ...string) string {
		t.Helper()
		out, log, err := execute(t, p, append(args, "--network-namespace", path)...)
		if err != nil {
			t.Fatalf("%q: %v", args, err)
		}
		return out + log
	}
	log := run("-b", "*", "-i", "*", "-m", "TPROXY", "--dual-stack", "--save", saved)
	if !strings.Contains(log, "traffic is redirected") || !strings.Contains(log, "backend=nftables") {
		t.Errorf("apply logs %s", log)
	}
	if live := run("show", "--live"); !strings.Contains(live, "outbound/all: all other outbound connections are captured") || !strings.Contains(live, "::6/128 on lo") {
		t.Errorf("the installed rules are shown as\n%s", live)
	}
	if text := run("explain", "--live", "--to", "[fd00::99]:80"); !strings.Contains(text, "outbound tcp from [fd00::5]:40000 to [fd00::99]:80") || !strings.Contains(text, "port 15001") {
		t.Errorf("explained as\n%s", text)
	}
	if text := run("explain", "--config", saved, "--from", "10.9.9.9", "--to", "10.0.0.5:80"); !strings.Contains(text, "is delivered to port 15006 of this pod with unchanged addresses") {
		t.Errorf("explained by the saved configuration as\n%s", text)
	}
	run("--cleanup-only")
	if _, _, err := execute(t, p, "show", "--live", "--network-namespace", path); !errors.Is(err, errNoRules) {
		t.Errorf("after clean-up: %v", err)
	}
}

func TestIPv6DependsOnNamespaceNotAddressOrder(t *testing.T) {
	p := newMachine(t, nil, nil)
	for _, c := range []struct {
		addresses []string
		args      []string
		families  string
		warned    bool
	}{
		{[]string{"10.0.0.5/24"}, nil, "IPv4", false},
		{[]string{"fd00::5/64"}, nil, "IPv4 and IPv6", false},
		{[]string{"fd00::5/64", "10.0.0.5/24"}, nil, "IPv4", true},
		{[]string{"10.0.0.5/24", "fd00::5/64"}, nil, "IPv4", true},
		{[]string{"10.0.0.5/24", "fd00::5/64"}, []string{"--dual-stack"}, "IPv4 and IPv6", false},
		{[]string{"10.0.0.5/24", "fd00::5/64"}, []string{"--ipv6", "reject"}, "IPv4 and IPv6", false},
		{nil, nil, "IPv4", false},
	} {
		_, log, err := execute(t, p, append([]string{"-b", "*", "-i", "*", "--network-namespace", newPod(t, c.addresses...)}, c.args...)...)
		if err != nil || !strings.Contains(log, fmt.Sprintf("families=%q", c.families)) && !strings.Contains(log, "families="+c.families+" ") {
			t.Errorf("%v %q: %v, %s", c.addresses, c.args, err, log)
		}
		if strings.Contains(log, "IPv6 traffic bypasses the proxy") != c.warned {
			t.Errorf("%v %q is warned about: %v; want %v", c.addresses, c.args, !c.warned, c.warned)
		}
	}
}

func TestValidationFailsWithoutRedirection(t *testing.T) {
	path := newPod(t, "10.0.0.5/24")
	p := newMachine(t, nil, nil)
	args := []string{"-b", "*", "-i", "*", "--network-namespace", path, "--run-validation", "--probe-timeout", "1s"}
	_, _, err := execute(t, p, append(args, "--skip-rule-apply")...)
	if exit := (*ExitError)(nil); !errors.As(err, &exit) || exit.Code != exitNotCaptured {
		t.Errorf("without redirection: %v", err)
	}
	if _, _, err := execute(t, p, args...); err != nil {
		t.Errorf("with it: %v", err)
	}
	if _, _, err := execute(t, p, append(args, "--skip-rule-apply")...); err != nil {
		t.Errorf("validated again: %v", err)
	}
}

// With unshare --user --net, the network namespace is created before the users of the user namespace are mapped. Parts
// of /proc/net then belong to the host's root user.
func TestRootOfAUserNamespaceRedirectsItsOwnNetwork(t *testing.T) {
	binary, err := os.Open(testenv.Bin(t, "pilotfish-iptables"))
	if err != nil {
		t.Fatal(err)
	}
	defer binary.Close()
	cmd := exec.Command("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "unshare", "--user", "--map-root-user", "--net",
		"/proc/self/fd/3", "-b", "*", "-i", "*")
	cmd.ExtraFiles, cmd.Dir = []*os.File{binary}, "/" // the unprivileged user may not have access to its directory
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "backend=nftables") {
		t.Errorf("%v: %s", err, out)
	}
}

func TestRejectedOptionsChangeNothing(t *testing.T) {
	path := newPod(t, "10.0.0.5/24")
	p := newMachine(t, nil, nil)
	if _, _, err := execute(t, p, "-b", "*", "--network-namespace", path); err != nil {
		t.Fatal(err)
	}
	before, _, _ := execute(t, p, "show", "--live", "-o", "json", "--network-namespace", path)
	for _, bad := range [][]string{{"-z", "70000"}, {"--force-iptables-binary", "old"},
		{"-z", "16006", "--save", "/nowhere/saved"}, {"-z", "16006", "--save", t.TempDir()}, {"-z", "16006", "--dry-run-format", "text"}} {
		if _, _, err := execute(t, p, append(bad, "--network-namespace", path)...); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
	if after, _, _ := execute(t, p, "show", "--live", "-o", "json", "--network-namespace", path); after != before || before == "" {
		t.Errorf("before\n%s\nafter\n%s", before, after)
	}
}

// An injected pod runs the command by Istio's name: as a binary of that name, and as a subcommand.
func TestBinaryNamedIstioIPTablesRunsCommand(t *testing.T) {
	agent := testenv.Bin(t, "pilotfish-agent")
	link := filepath.Join(t.TempDir(), Name)
	if err := os.Symlink(agent, link); err != nil {
		t.Fatal(err)
	}
	for _, argv := range [][]string{{link}, {agent, Name}, {agent, "iptables"}} {
		cmd := exec.Command(argv[0], append(argv[1:], "-b", "*", "-i", "*", "-u", "1337", "-n")...)
		out, err := cmd.Output()
		if err != nil || !strings.Contains(string(out), "outbound/proxy-uid-1337") {
			t.Errorf("%q: %v\n%s", argv, err, out)
		}
		bad := exec.Command(argv[0], append(argv[1:], "-p", "0")...)
		if err := bad.Run(); bad.ProcessState.ExitCode() != exitUsage {
			t.Errorf("%q with a bad port ends with %v", argv, err)
		}
	}
}
