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

// Main runs the binary pilotfish-iptables, which contains only the redirection command, and returns the exit code.
// Compared with the agent's binary, it starts ten times faster and needs a third of the memory.
func Main(p Process) int {
	umask.ClearOwnerBits()
	debug.SetGCPercent(400) // no collection in a run of a few milliseconds
	runtime.GOMAXPROCS(1)   // the work is sequential; idle processors that look for work cost a quarter of the run time
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
