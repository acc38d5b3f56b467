package command

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/agent"
	"github.com/pilotfish-mesh/pilotfish/internal/phrase"
)

// exitNotPossible is the exit code of the redirection command if this process may not read the rules.
const exitNotPossible = 3

// installedRules is the part of the output of `iptables show --live -o json` that the check needs.
type installedRules struct {
	Backend string   `json:"backend"`
	Strange []string `json:"strange"` // rules in the redirection's tables that this program does not create
	Rules   struct {
		Chains []struct {
			Rules []struct {
				Verdict struct {
					Action string `json:"action"`
					Port   uint16 `json:"port"`
				} `json:"verdict"`
			} `json:"rules"`
		} `json:"chains"`
	} `json:"rules"`
}

// checkRedirection checks the rules of the agent's network namespace. It executes `iptables show` as another process,
// because pilotfish-agent does not contain the code of this command.
func checkRedirection(ctx context.Context, r agent.CheckReport) agent.CheckResult {
	skip := func(format string, args ...any) agent.CheckResult {
		return agent.CheckResult{Name: agent.CheckRedirection, State: agent.CheckSkipped, Detail: fmt.Sprintf(format, args...)}
	}
	if r.InterceptionMode == "NONE" {
		return skip("this proxy does not capture traffic")
	}
	args := []string{"iptables", "show", "--live", "-o", "json"}
	if own, err := os.Readlink("/proc/self/ns/net"); err != nil || own != r.NetworkNamespace {
		file := fmt.Sprintf("/proc/%d/ns/net", r.PID)
		if theirs, err := os.Readlink(file); err != nil || theirs != r.NetworkNamespace {
			return skip("the agent runs in another network namespace; run this command there")
		}
		args = append(args, "--network-namespace", file)
	}
	rules, err := readInstalledRules(ctx, args)
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.ExitCode() == exitNotPossible:
		return skip("this process may not read the rules: run this command as root with CAP_NET_ADMIN")
	case err != nil && r.InterceptionMode == "":
		return skip("no rules were found, and ISTIO_META_INTERCEPTION_MODE does not require any")
	case err != nil:
		return failRedirection("%v", err)
	}
	return judgeRules(rules)
}

// judgeRules returns a failure if the rules redirect no traffic, or if other programs have changed them.
func judgeRules(rules installedRules) agent.CheckResult {
	count, ports := 0, []string{}
	for _, c := range rules.Rules.Chains {
		count += len(c.Rules)
		for _, rule := range c.Rules {
			if v := rule.Verdict; v.Action == "REDIRECT" || v.Action == "TPROXY" {
				ports = append(ports, fmt.Sprint(v.Port))
			}
		}
	}
	slices.Sort(ports)
	ports = slices.Compact(ports)
	switch {
	case len(ports) == 0:
		return failRedirection("none of the %s redirects traffic", phrase.Count(count, "installed rule"))
	case len(rules.Strange) > 0:
		return failRedirection("the tables of the redirection contain rules of another program: %s", phrase.ListFirst(rules.Strange, 3))
	}
	return agent.CheckResult{Name: agent.CheckRedirection, State: agent.CheckPassed,
		Detail: fmt.Sprintf("%s of %s redirect to the ports %s", phrase.Count(count, "rule"), rules.Backend, strings.Join(ports, ", "))}
}

func failRedirection(format string, args ...any) agent.CheckResult {
	return agent.CheckResult{Name: agent.CheckRedirection, State: agent.CheckFailed, Detail: fmt.Sprintf(format, args...),
		Remedy: "run `iptables` with the pod's options again, or restart the pod; `iptables verify` tests the rules with packets"}
}

// readInstalledRules executes this program with args, the redirection command, and decodes its output. If the command
// fails, the error contains the last line of the command's stderr.
func readInstalledRules(ctx context.Context, args []string) (rules installedRules, err error) {
	self, err := os.Executable()
	if err != nil {
		return rules, fmt.Errorf("finding the running executable: %w", err)
	}
	var out, messages bytes.Buffer
	cmd := exec.CommandContext(ctx, self, args...) // #nosec G204 -- our own executable
	cmd.Stdout, cmd.Stderr = &out, &messages
	if err := cmd.Run(); err != nil {
		lines := strings.Split(strings.TrimSpace(messages.String()), "\n")
		return rules, &redirectionError{lines[len(lines)-1], err}
	}
	if err := json.Unmarshal(out.Bytes(), &rules); err != nil {
		return rules, fmt.Errorf("reading the installed rules: %w", err)
	}
	return rules, nil
}

// redirectionError is a failure of the redirection command. message is the last line of the command's stderr.
type redirectionError struct {
	message string
	err     error
}

func (e *redirectionError) Error() string {
	_, text, found := strings.Cut(e.message, ": ") // the name of the program
	if !found {
		return fmt.Sprintf("reading the installed rules: %v", e.err)
	}
	return text
}

func (e *redirectionError) Unwrap() error { return e.err }
