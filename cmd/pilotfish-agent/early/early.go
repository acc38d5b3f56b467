// Package early hands the command iptables to the small binary beside this one. The agent links gRPC and Envoy's types,
// whose initialization takes longer than all that the command does, and as much memory again; Go initializes a package as
// soon as those that it imports are, so that this one, which imports next to nothing, comes before them. Without the small
// binary the agent does the work itself.
package early

import (
	"os"
	"path/filepath"
	"syscall"
)

// small is the binary of the command.
const small = "pilotfish-iptables"

func init() {
	args, is := redirection(os.Args)
	self, err := os.Executable()
	if !is || err != nil {
		return
	}
	_ = syscall.Exec(filepath.Join(filepath.Dir(self), small), append([]string{small}, args...), os.Environ())
}

// redirection gives the arguments of the command, if that is what is asked for: by the first argument, or by the name of
// the program.
func redirection(args []string) (rest []string, is bool) {
	const contract = "istio-iptables"
	switch {
	case len(args) == 0:
		return nil, false
	case filepath.Base(args[0]) == contract:
		return args[1:], true
	case len(args) > 1 && (args[1] == "iptables" || args[1] == contract):
		return args[2:], true
	}
	return nil, false
}
