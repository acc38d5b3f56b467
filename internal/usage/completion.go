package usage

import (
	"strings"

	"github.com/spf13/cobra"
)

// Execute runs the command line of a program, and returns the command that was called. An error that occurs before a
// command runs has the type Error.
func Execute(root *cobra.Command) (*cobra.Command, error) {
	addCompletion(root)
	addHelp(root)
	parsed := false
	root.PersistentPreRun = func(*cobra.Command, []string) { parsed = true }
	c, err := root.ExecuteC()
	if err != nil && !parsed {
		err = Error{err}
	}
	return c, err
}

// addHelp adds the command help, which returns an error for the name of an unknown command.
func addHelp(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	c, _, err := root.Find([]string{"help"})
	if err != nil || c == root {
		return
	}
	c.Run, c.RunE = nil, func(c *cobra.Command, args []string) error {
		found, rest, err := c.Root().Find(args)
		switch {
		case err != nil:
			return err
		case len(rest) > 0 && found.HasSubCommands():
			return unknownCommand(found, rest[0])
		}
		found.InitDefaultHelpFlag()
		return found.Help()
	}
}

// addCompletion adds the command that prints completion scripts for shells, if root has subcommands. For an unsupported
// shell, the command lists the supported ones.
func addCompletion(root *cobra.Command) {
	if !root.HasSubCommands() {
		return
	}
	root.InitDefaultCompletionCmd()
	c, _, err := root.Find([]string{"completion"})
	if err != nil || c == root {
		return
	}
	var shells []string
	for _, sub := range c.Commands() {
		shells = append(shells, sub.Name())
		sub.Args = Args()
	}
	c.Use = "completion SHELL"
	c.Args = func(c *cobra.Command, args []string) error {
		if len(args) == 0 {
			return errorf("SHELL is missing; usage: %s; supported shells: %s", c.UseLine(), strings.Join(shells, ", "))
		}
		return errorf("completion is not available for %q; supported shells: %s", args[0], strings.Join(shells, ", "))
	}
	c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
}
