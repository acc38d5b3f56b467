package redirect

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pilotfish-mesh/pilotfish/internal/helptext"
	"github.com/pilotfish-mesh/pilotfish/internal/termtext"
	"github.com/pilotfish-mesh/pilotfish/internal/umask"
	"github.com/pilotfish-mesh/pilotfish/internal/usage"
)

// Main runs the binary pilotfish-iptables, which contains only the redirection command, and returns the exit code. This
// binary starts ten times faster than the agent's and needs a third of its memory.
func Main(p Process) int {
	umask.ClearOwnerBits()
	debug.SetGCPercent(400) // a run of a few milliseconds needs no garbage collection
	// The work is sequential; idle processors that search for work would cost a quarter of the run time.
	runtime.GOMAXPROCS(1)
	name := calledName(os.Args)
	c := newProgram(p, name)
	c.SetOut(termtext.NewWriter(os.Stdout))
	c.SetErr(termtext.NewWriter(os.Stderr))
	_, err := usage.Execute(c)
	if err == nil {
		return 0
	}
	fmt.Fprintf(c.ErrOrStderr(), "%s: %v\n", name, err)
	if exit := (interface{ ProcessExitCode() int })(nil); errors.As(err, &exit) {
		return exit.ProcessExitCode()
	}
	return 1
}

const program = "pilotfish-iptables"

// calledName returns the name with which the user called the program. If the agent has executed the program, args[0]
// contains the agent's name and the command, as the user wrote them.
func calledName(args []string) string {
	if len(args) == 0 || args[0] == "" {
		return program
	}
	return filepath.Base(args[0])
}

// newProgram returns the command line of the binary. Help texts and messages contain name.
func newProgram(p Process, name string) *cobra.Command {
	c := Command(p)
	c.Use, c.Aliases = program, nil
	c.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: name}
	c.SilenceErrors, c.SilenceUsage = true, true
	for _, sub := range append(c.Commands(), c) {
		sub.Example = strings.ReplaceAll(sub.Example, "pilotfish-agent iptables", name)
	}
	usage.Install(c)
	helptext.WrapFlags(c)
	return c
}
