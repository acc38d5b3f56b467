package usage

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pilotfish-mesh/pilotfish/internal/suggest"
)

// explainFlagError replaces an error of pflag by a clearer one. If the command line names an unknown subcommand, it
// reports only the subcommand, because the flag may belong to the subcommand that the user meant.
func explainFlagError(c *cobra.Command, err error) error {
	if args := c.Flags().Args(); len(args) > 0 && c.HasSubCommands() && c.Args != nil {
		if unknown := c.Args(c, args); unknown != nil {
			return unknown
		}
	}
	return errorf("%w (see `%s --help`)", DescribeFlagError(c.Flags(), err), c.CommandPath())
}

// DescribeFlagError replaces an error of pflag by one that names the flag, its value and what to write. It returns
// other errors unchanged.
func DescribeFlagError(flags *pflag.FlagSet, err error) error {
	var unknown *pflag.NotExistError
	var missing *pflag.ValueRequiredError
	var invalid *pflag.InvalidValueError
	switch {
	case errors.As(err, &unknown):
		return describeUnknownFlag(flags, unknown)
	case errors.As(err, &missing):
		f := missing.GetFlag()
		return fmt.Errorf("--%s requires a value: %s", f.Name, DescribeValue(f))
	case errors.As(err, &invalid):
		return describeInvalidValue(invalid)
	}
	return err
}

func describeUnknownFlag(flags *pflag.FlagSet, err *pflag.NotExistError) error {
	name := err.GetSpecifiedName()
	if group := err.GetSpecifiedShortnames(); group != "" {
		text := fmt.Sprintf("unknown flag: -%s", name)
		if len(group) > 1 {
			text += fmt.Sprintf(" in -%s; flags with a long name begin with two dashes%s", group, didYouMean(closestFlag(flags, group)))
		}
		return errors.New(text)
	}
	return fmt.Errorf("unknown flag: --%s%s", name, didYouMean(closestFlag(flags, name)))
}

// closestFlag returns the visible flag that is most similar to name, with its dashes. It returns "" if no flag is
// similar.
func closestFlag(flags *pflag.FlagSet, name string) string {
	var names []string
	flags.VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, f.Name)
		}
	})
	if found := suggest.Name(name, names); found != "" {
		return "--" + found
	}
	return ""
}

func describeInvalidValue(err *pflag.InvalidValueError) error {
	f := err.GetFlag()
	if _, known := valueTypes[f.Value.Type()]; known {
		return fmt.Errorf("--%s %q: write %s", f.Name, err.GetValue(), DescribeValue(f))
	}
	cause := err.Unwrap().Error()
	if strings.Contains(cause, err.GetValue()) { // the cause quotes the value
		return fmt.Errorf("--%s: %s", f.Name, cause)
	}
	return fmt.Errorf("--%s %q: %s", f.Name, err.GetValue(), cause)
}

// valueTypes describes the values of pflag's types.
var valueTypes = map[string]string{
	"bool":     "true or false",
	"duration": "a duration, such as 500ms, 30s or 5m",
	"int":      "a whole number",
	"int32":    "a whole number",
	"int64":    "a whole number",
	"uint":     "a whole number that is not negative",
	"uint8":    "a whole number from 0 to 255",
	"uint16":   "a whole number from 0 to 65535",
	"uint32":   "a whole number from 0 to 4294967295",
	"uint64":   "a whole number that is not negative",
	"float32":  "a number",
	"float64":  "a number",
}

// DescribeValue describes the values of a flag by its type, or else by the flag's description.
func DescribeValue(f *pflag.Flag) string {
	if text, known := valueTypes[f.Value.Type()]; known {
		return text
	}
	_, text := pflag.UnquoteUsage(f)
	return text
}

// SetExclusive refuses command lines with more than one of the flags.
func SetExclusive(c *cobra.Command, flags ...string) {
	c.MarkFlagsMutuallyExclusive(flags...) // for shell completion
	addCheck(c, func() error {
		if set := changed(c, flags); len(set) > 1 {
			return errorf("%s cannot be combined; use one of them (see `%s --help`)", strings.Join(set, " and "), c.CommandPath())
		}
		return nil
	})
}

// SetTogether refuses command lines with only some of the flags.
func SetTogether(c *cobra.Command, flags ...string) {
	c.MarkFlagsRequiredTogether(flags...) // for shell completion
	addCheck(c, func() error {
		set := changed(c, flags)
		if len(set) == 0 || len(set) == len(flags) {
			return nil
		}
		for _, name := range flags {
			if !c.Flags().Changed(name) {
				return errorf("%s requires --%s (see `%s --help`)", set[0], name, c.CommandPath())
			}
		}
		return nil
	})
}

// SetOneRequired refuses command lines with none of the flags.
func SetOneRequired(c *cobra.Command, flags ...string) {
	c.MarkFlagsOneRequired(flags...) // for shell completion
	addCheck(c, func() error {
		if len(changed(c, flags)) > 0 {
			return nil
		}
		return errorf("--%s is missing; usage: %s (see `%s --help`)", strings.Join(flags, " or --"), c.UseLine(), c.CommandPath())
	})
}

// addCheck adds a check that runs before cobra's own checks of flags.
func addCheck(c *cobra.Command, check func() error) {
	next := c.PreRunE
	c.PreRunE = func(cmd *cobra.Command, args []string) error {
		if err := check(); err != nil || next == nil {
			return err
		}
		return next(cmd, args)
	}
}

// changed returns those of the flags that are on the command line, with their dashes.
func changed(c *cobra.Command, flags []string) []string {
	var set []string
	for _, name := range flags {
		if c.Flags().Changed(name) {
			set = append(set, "--"+name)
		}
	}
	return set
}
