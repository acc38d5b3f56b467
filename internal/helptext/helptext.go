// Package helptext formats the --help text of command-line programs.
package helptext

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// columns is the maximum line width of flag descriptions.
const columns = 80

// WrapFlags wraps the flag descriptions in the usage texts of root and its subcommands.
func WrapFlags(root *cobra.Command) {
	printUsage := root.UsageFunc()
	root.SetUsageFunc(func(c *cobra.Command) error {
		out := c.OutOrStderr()
		var text strings.Builder
		c.SetOut(&text)
		err := printUsage(c)
		c.SetOut(out)
		if err != nil {
			return err
		}
		usage := text.String()
		for _, flags := range []*pflag.FlagSet{c.LocalFlags(), c.InheritedFlags()} {
			if long := trim(flags.FlagUsages()); long != "" {
				usage = strings.Replace(usage, long, trim(flags.FlagUsagesWrapped(columns)), 1)
			}
		}
		_, err = out.Write([]byte(usage))
		return err
	})
}

func trim(s string) string { return strings.TrimRight(s, " \n") }
