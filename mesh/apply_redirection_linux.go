package mesh

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/mesh/netns"
	"github.com/pilotfish-mesh/pilotfish/mesh/topology"
)

// redirectionTimeout is the timeout of the command that installs the redirection rules.
const redirectionTimeout = 20 * time.Second

// applyRedirection installs the redirection rules in sb: it runs the agent's command `iptables` there.
func (p *capturedPlacement) applyRedirection(i *topology.Instance, sb *sandbox) error {
	args := append(append([]string(nil), p.resources.Agent...), redirectionArgs(i.Workload)...)
	if out, err := sb.run(args, p.resources.Environ); err != nil {
		return fmt.Errorf("installing the redirection rules of workload %s by `%s`: %w: %s (run the mesh without redirection with --no-capture)",
			i.Name, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// run runs the command args in the sandbox. It returns the command's standard output and standard error together.
func (sb *sandbox) run(args, env []string) (output []byte, err error) {
	netns.OnThread(func() {
		if err = sb.namespace.EnterThread(); err == nil {
			err = sb.isolation.Enter()
		}
		if err == nil {
			output, err = runRedirectionCommand(args, env)
		}
	})
	return output, err
}

func runRedirectionCommand(args, env []string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), redirectionTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...) // #nosec G204 -- the command is the agent
	cmd.Env = env
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, AmbientCaps: []uintptr{unix.CAP_NET_ADMIN}}
	return cmd.CombinedOutput()
}
