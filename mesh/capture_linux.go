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
)

// captureTimeout bounds how long putting the rules in force may take.
const captureTimeout = 20 * time.Second

// capture has the agent's own command put the rules in force in a place.
func (p *capturedPlacement) capture(i *Instance, at *place) error {
	args := append(append([]string(nil), p.use.Agent...), captureArgs(i.workload)...)
	if out, err := at.run(args, p.use.Environ); err != nil {
		return fmt.Errorf("capturing the traffic of workload %s by `%s`: %w: %s (--no-capture runs the mesh without)",
			i.Name, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// run runs a program in a place to its end.
func (at *place) run(args, env []string) (output []byte, err error) {
	netns.OnThread(func() {
		if err = at.space.EnterThread(); err == nil {
			err = at.around.Enter()
		}
		if err == nil {
			output, err = runHere(args, env)
		}
	})
	return output, err
}

func runHere(args, env []string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), captureTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...) // #nosec G204 -- the agent
	cmd.Env = env
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, AmbientCaps: []uintptr{unix.CAP_NET_ADMIN}}
	return cmd.CombinedOutput()
}
