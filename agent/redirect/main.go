package redirect

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"

	"github.com/pilotfish-mesh/pilotfish/internal/helptext"
	"github.com/pilotfish-mesh/pilotfish/internal/termtext"
	"github.com/pilotfish-mesh/pilotfish/internal/umask"
)

// Main runs the binary pilotfish-iptables, which contains only the redirection command, and returns the exit code. This
// binary starts ten times faster than the agent's and needs a third of its memory.
func Main(p Process) int {
	umask.ClearOwnerBits()
	debug.SetGCPercent(400) // a run of a few milliseconds needs no garbage collection
	// The work is sequential; idle processors that search for work would cost a quarter of the run time.
	runtime.GOMAXPROCS(1)
	c := Command(p)
	c.Use, c.Aliases = "pilotfish-iptables", nil
	c.SilenceErrors, c.SilenceUsage = true, true
	helptext.WrapFlags(c)
	c.SetOut(termtext.NewWriter(os.Stdout))
	c.SetErr(termtext.NewWriter(os.Stderr))
	err := c.Execute()
	if err == nil {
		return 0
	}
	fmt.Fprintln(c.ErrOrStderr(), "pilotfish-iptables:", err)
	if exit := (*ExitError)(nil); errors.As(err, &exit) {
		return exit.Code
	}
	return 1
}
