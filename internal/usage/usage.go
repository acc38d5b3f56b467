// Package usage checks command lines, and reports what is wrong with them: each message names the flag or argument, and
// how the command is used.
package usage

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pilotfish-mesh/pilotfish/internal/suggest"
)

// ExitCode is the exit code of all programs for an invalid command line.
const ExitCode = 2

// Error reports an invalid command line, which the user must correct.
type Error struct{ Err error }

func (e Error) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e Error) Unwrap() error { return e.Err }

// ProcessExitCode returns the exit code of the process.
func (Error) ProcessExitCode() int { return ExitCode }

func errorf(format string, args ...any) error { return Error{fmt.Errorf(format, args...)} }

// Install makes root and all its subcommands report invalid flags, and unknown subcommands, with the messages of this
// package. A command that only groups subcommands then prints its help if it is called without one.
func Install(root *cobra.Command) {
	for _, c := range append(root.Commands(), root) {
		if c != root {
			Install(c)
			continue
		}
		c.SetFlagErrorFunc(explainFlagError)
		if c.HasSubCommands() && !c.Runnable() { // by default, cobra prints the help for an unknown subcommand and succeeds
			c.Args = Args()
			c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
		}
	}
}

// Args returns a check of a command's arguments. The names are those in the usage line: "WORKLOAD" is required,
// "[WORKLOAD]" is optional, and an argument whose name ends with "..." may be repeated. Optional arguments are last.
func Args(names ...string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		for i, name := range names {
			if i >= len(args) && !strings.HasPrefix(name, "[") {
				return errorf("%s is missing; usage: %s (see `%s --help`)", strings.TrimSuffix(name, "..."), c.UseLine(), c.CommandPath())
			}
		}
		if len(args) <= len(names) || len(names) > 0 && strings.HasSuffix(names[len(names)-1], "...") {
			return nil
		}
		extra := args[len(names)]
		if c.HasAvailableSubCommands() && len(names) == 0 {
			return unknownCommand(c, extra)
		}
		return errorf("unexpected argument %q; usage: %s (see `%s --help`)", extra, c.UseLine(), c.CommandPath())
	}
}

func unknownCommand(c *cobra.Command, name string) error {
	var names []string
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() {
			names = append(append(names, sub.Name()), sub.Aliases...)
		}
	}
	return errorf("unknown command %q for %q%s (see `%s --help`)", name, c.CommandPath(), didYouMean(suggest.Name(name, names)), c.CommandPath())
}

func didYouMean(name string) string {
	if name == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %s?", name)
}

// SetCompletions sets the values that shells suggest for a flag.
func SetCompletions(c *cobra.Command, flag string, values ...string) {
	_ = c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)) // the flag exists
}
