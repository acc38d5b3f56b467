package command

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"
)

// redirectionProgram is the binary with the redirection command.
const redirectionProgram = "pilotfish-iptables"

// newRedirectionCommand returns the command that executes pilotfish-iptables with its arguments. The agent does not
// contain the redirection itself, because every proxy would need memory for it.
func newRedirectionCommand() *cobra.Command {
	return &cobra.Command{
		Use:                "iptables",
		Aliases:            []string{istioRedirection},
		Short:              "Redirect a pod's traffic to its Envoy",
		Long:               "Redirect a pod's traffic to its Envoy. This command executes " + redirectionProgram + " with the same arguments.",
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			path, err := findRedirectionProgram()
			if err == nil { // messages of the program contain the name with which the user called it
				err = syscall.Exec(path, append([]string{calledName(cmd)}, args...), os.Environ())
			}
			return fmt.Errorf("executing %s: %w; install it in the directory of pilotfish-agent", redirectionProgram, err)
		},
	}
}

// calledName returns the name with which the user called the command.
func calledName(cmd *cobra.Command) string {
	if name := filepath.Base(os.Args[0]); name == istioRedirection {
		return name
	}
	return cmd.Root().Name() + " " + cmd.CalledAs()
}

// findRedirectionProgram returns the path of pilotfish-iptables in the directory of the running binary, or in PATH.
func findRedirectionProgram() (string, error) {
	if self, err := os.Executable(); err == nil {
		path := filepath.Join(filepath.Dir(self), redirectionProgram)
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	return exec.LookPath(redirectionProgram)
}
