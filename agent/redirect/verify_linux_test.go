package redirect

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/nftables"

	"github.com/pilotfish-mesh/pilotfish/internal/testns"
	"github.com/pilotfish-mesh/pilotfish/iptables/verify"
)

// captureAllArgs are the options of an injected pod.
var captureAllArgs = []string{"-b", "*", "-i", "*", "-d", "15090,15021,15020", "-u", "1337", "--dual-stack"}

// runIn runs the command in a namespace.
func runIn(t *testing.T, ns *testns.Namespace, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	c := Command(Process{})
	c.SetOut(&out)
	c.SetErr(&errs)
	c.SilenceErrors, c.SilenceUsage = true, true
	c.SetArgs(append(args, "--network-namespace", fmt.Sprintf("/proc/self/fd/%d", ns.Handle)))
	err := c.ExecuteContext(t.Context())
	var exit interface{ ProcessExitCode() int }
	switch {
	case errors.As(err, &exit):
		code = exit.ProcessExitCode()
	case err != nil:
		code = 1
	}
	return code, out.String(), fmt.Sprint(errs.String(), err)
}

func appendArgs(args []string, more ...string) []string {
	return append(append([]string{}, args...), more...)
}

// isTracing reports whether a trace is running in the namespace.
func isTracing(t *testing.T, ns *testns.Namespace) bool {
	t.Helper()
	conn, err := nftables.New(nftables.WithNetNSFd(int(ns.Handle)))
	if err != nil {
		t.Fatal(err)
	}
	tables, err := conn.ListTables()
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(tables, func(table *nftables.Table) bool { return table.Name == "pilotfish_trace" })
}

func TestInterruptedTraceCleansUp(t *testing.T) {
	ns := testns.New(t)
	if code, _, said := runIn(t, ns, captureAllArgs...); code != 0 {
		t.Fatal(said)
	}
	ended := make(chan string, 1)
	go func() {
		code, _, said := runIn(t, ns, "trace", "--for", "5m")
		ended <- fmt.Sprint(code, said)
	}()
	for end := time.Now().Add(time.Minute); !isTracing(t, ns); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the trace does not start")
		}
	}
	if err := syscall.Kill(os.Getpid(), syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	select {
	case said := <-ended:
		if !strings.HasPrefix(said, "0") {
			t.Error(said)
		}
	case <-time.After(time.Minute):
		t.Fatal("the trace does not stop")
	}
	if isTracing(t, ns) {
		t.Error("the trace has left its table behind")
	}
}

func TestVerifyReportsDifferences(t *testing.T) {
	ns := testns.New(t)
	code, out, said := runIn(t, ns, append([]string{"verify"}, captureAllArgs...)...)
	if code != 1 || !strings.Contains(out, "no rules are installed") || !strings.Contains(out, "bypasses the proxy") || !strings.Contains(said, "1 difference in the rules") {
		t.Errorf("without rules: exit code %d\n%s%s", code, out, said)
	}
	if code, _, said := runIn(t, ns, captureAllArgs...); code != 0 {
		t.Fatal(said)
	}
	code, out, said = runIn(t, ns, append([]string{"verify", "--output", "json"}, captureAllArgs...)...)
	var r struct {
		Proofs   []verify.Proof
		Unproven []string
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil || code != 0 || len(r.Proofs) < 30 || !r.Proofs[0].OK || len(r.Unproven) > 0 {
		t.Errorf("with rules: exit code %d, %v\n%s%s", code, err, out, said)
	}
	if code, out, said := runIn(t, ns, "verify", "--live"); code != 0 {
		t.Errorf("the installed rules: exit code %d\n%s%s", code, out, said)
	}
	code, out, _ = runIn(t, ns, append([]string{"verify", "-x", "10.0.0.0/8"}, captureAllArgs...)...)
	if code != 1 || !strings.Contains(out, "10.0.0.1:30123 from uid 10123, gid 10123 is redirected to port 15001, but should not be captured") {
		t.Errorf("with other options: exit code %d\n%s", code, out)
	}
}

func TestVerifyRefusesWrongFlags(t *testing.T) {
	ns := testns.New(t)
	for _, args := range [][]string{{"-o", "xml"}, {"-b", "70000"}, {"something"}} {
		if code, _, said := runIn(t, ns, append([]string{"verify"}, args...)...); code != exitUsage {
			t.Errorf("%v: exit code %d, %s", args, code, said)
		}
	}
}

func TestValidationFailureExitCode(t *testing.T) {
	ns := testns.New(t)
	validation := appendArgs(captureAllArgs, "--skip-rule-apply", "--run-validation", "--probe-timeout", "2s")
	if code, _, said := runIn(t, ns, validation...); code != exitNotCaptured {
		t.Errorf("without rules: exit code %d, %s", code, said)
	}
	if code, _, said := runIn(t, ns, appendArgs(captureAllArgs, "--run-validation")...); code != 0 {
		t.Errorf("apply and validate: exit code %d, %s", code, said)
	}
	if code, _, said := runIn(t, ns, validation...); code != 0 {
		t.Errorf("with rules: exit code %d, %s", code, said)
	}
}

func TestTraceShowsPacketsAsTheyAre(t *testing.T) {
	ns := testns.New(t)
	if code, _, said := runIn(t, ns, "trace", "--for", "1s"); code != 1 || !strings.Contains(said, errNoRules.Error()) {
		t.Errorf("without rules: exit code %d, %s", code, said)
	}
	if code, _, said := runIn(t, ns, captureAllArgs...); code != 0 {
		t.Fatal(said)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil { // packets before the start of the trace are not seen
			_ = ns.Run(func() error {
				if c, err := net.DialTimeout("tcp", "127.0.0.1:80", time.Second); err == nil {
					_ = c.Close()
				}
				return nil
			})
			time.Sleep(10 * time.Millisecond)
		}
	}()
	code, out, said := runIn(t, ns, "trace", "--count", "1", "--for", "20s", "--to", "127.0.0.0/8", "--protocol", "tcp", "--port", "80", "--uid", "0")
	cancel()
	<-ended
	if code != 0 || !strings.Contains(out, "outbound/localhost-ipv4") && !strings.Contains(out, "outbound/local-ipv4") ||
		!strings.Contains(out, "→ arrives at 127.0.0.1:80 in this namespace, through lo") {
		t.Errorf("exit code %d\n%s%s", code, out, said)
	}
}

func TestTraceRejectsUnlimitedValues(t *testing.T) {
	ns := testns.New(t)
	for _, args := range [][]string{{"--for", "24h"}, {"--count", "0"}, {"--protocol", "icmp"}, {"--to", "nowhere"}, {"-o", "yaml"}, {"--uid", "nobody-of-this-name"}} {
		if code, _, said := runIn(t, ns, append([]string{"trace"}, args...)...); code != exitUsage {
			t.Errorf("%v: exit code %d, %s", args, code, said)
		}
	}
}

func TestTraceRefusesLegacyRules(t *testing.T) {
	if _, err := exec.LookPath("iptables-legacy-restore"); err != nil {
		t.Skip("iptables is not installed; scripts/iptables.sh installs it")
	}
	ns := testns.New(t)
	if code, _, stderr := runIn(t, ns, appendArgs(captureAllArgs, "--force-iptables-binary", "legacy")...); code != 0 {
		t.Fatalf("apply: exit code %d, %s", code, stderr)
	}
	if code, _, stderr := runIn(t, ns, "trace", "--for", "1s"); code == 0 || !strings.Contains(stderr, "cannot be traced") {
		t.Errorf("trace: exit code %d, %s", code, stderr)
	}
}

func TestShowCommandsAcceptApplyFlags(t *testing.T) {
	ns := testns.New(t)
	for _, name := range []string{"verify", "show"} {
		for _, more := range [][]string{{"--force-iptables-binary", "legacy"}, {"--native-nftables"}, {"--native-nftables=false"}} {
			if code, _, said := runIn(t, ns, append([]string{name}, more...)...); code == exitUsage {
				t.Errorf("%s %v: %s", name, more, said)
			}
		}
		if code, _, said := runIn(t, ns, name, "-o", "8080,9090"); code != exitUsage || !strings.Contains(said, "--istio-local-outbound-ports-exclude") {
			t.Errorf("%s -o 8080,9090: exit code %d, %s", name, code, said)
		}
	}
}
