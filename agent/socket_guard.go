package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/internal/uds"
)

// newGuard returns the guard of a socket, which requires a secret from Envoy and other clients. It returns nil if no
// secret is configured. A client needs no secret if it is not Envoy, and runs as a user in listed or satisfies
// isOtherProgram.
func (a *Agent) newGuard(part string, listed uds.Users) *uds.Guard {
	if a.bootstrap.AgentSecret == "" {
		return nil
	}
	return &uds.Guard{
		Secret:   a.bootstrap.AgentSecret,
		IsExempt: func(p uds.Peer) bool { return !a.isEnvoy(p.PID) && (listed.Allow(p.UID) || a.isOtherProgram(p.PID)) },
		Logger:   a.Logger.With("part", part),
	}
}

// isOtherProgram reports whether a process runs a program other than Envoy. It returns false if the program is unknown,
// as for a process in another PID namespace. It also returns false for Envoys of other agents, because their
// configuration could contain this socket. It recognizes Envoys by a program name that begins with "envoy", or by the
// program file of the agent's own Envoy.
func (a *Agent) isOtherProgram(pid int32) bool {
	program, err := os.Readlink(programLink(int(pid)))
	if err != nil || strings.HasPrefix(filepath.Base(program), "envoy") {
		return false
	}
	file, err := os.Stat(programLink(int(pid)))
	return err == nil && !slices.ContainsFunc(a.envoyPIDs.list(), func(own int) bool {
		envoy, err := os.Stat(programLink(own))
		return err == nil && os.SameFile(file, envoy)
	})
}

// programLink returns the path of the link to a process's program.
func programLink(pid int) string { return fmt.Sprintf("/proc/%d/exe", pid) }
