package main

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/pilotfish-mesh/pilotfish/agent/command"
	"github.com/pilotfish-mesh/pilotfish/internal/usage"
	"github.com/pilotfish-mesh/pilotfish/version"
)

// newCollateralCommand returns the command that writes the man pages. Istio's programs have the same command and flags.
func newCollateralCommand() *cobra.Command {
	var dir string
	var man bool
	c := &cobra.Command{
		Use:     "collateral --man",
		Short:   "Write the man pages of pilotfish and pilotfish-agent",
		Example: "  pilotfish collateral --man --outputDir /usr/local/share/man/man1",
		Args:    usage.Args(),
		Hidden:  true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !man {
				return usageError{fmt.Errorf("nothing to write: use --man")}
			}
			return writeManPages(dir, cmd.Root(), command.NewRoot(newRedirectionCommand()))
		},
	}
	c.Flags().BoolVar(&man, "man", false, "write man pages, which is the only supported kind of files")
	c.Flags().StringVarP(&dir, "outputDir", "o", ".", "existing directory in which the man pages are written (default: the working directory)")
	return c
}

// writeManPages writes one page per command. The pages are the same in each build of a version, so they contain no date.
func writeManPages(dir string, programs ...*cobra.Command) error {
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return usageError{fmt.Errorf("--outputDir %s is not a directory; create it", filepath.Clean(dir))}
	}
	for _, program := range programs {
		program.DisableAutoGenTag = true
		header := &doc.GenManHeader{Section: "1", Source: "pilotfish " + version.Version, Manual: "Pilotfish", Date: &time.Time{}}
		if err := doc.GenManTree(program, header, dir); err != nil {
			return fmt.Errorf("writing the man pages of %s: %w", program.Name(), err)
		}
	}
	return nil
}
