package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/pilotfish-mesh/pilotfish/envoy"
)

func newEnvoyCommand() *cobra.Command {
	var path string
	c := &cobra.Command{
		Use:   "envoy",
		Short: "Show which Envoy binary is used, and where it was found",
		Long: `Show the Envoy binary that a mesh on this machine uses: its path, its version,
and where it was found. The search order is --envoy-path, ENVOY_PATH,
pilotfish's cache (which 'make envoy' fills), and PATH.

Exit codes:
  0  a usable Envoy was found
  1  no usable Envoy was found`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			options := envoy.FindOptions{Path: path, EnvPath: os.Getenv("ENVOY_PATH"), PathEnv: os.Getenv("PATH")}
			if cache, err := os.UserCacheDir(); err == nil {
				options.CacheDir = filepath.Join(cache, "pilotfish", "envoy")
			}
			found, err := envoy.Find(c.Context(), options)
			if err != nil {
				return err
			}
			fmt.Fprintf(c.OutOrStdout(), "%s\nversion %s, from %s\n", found.Path, found.Version, found.Source)
			if report := found.Version.Advisories(); !report.IsEmpty() {
				fmt.Fprintf(c.ErrOrStderr(), "warning: %s\n", report)
			}
			return nil
		},
	}
	c.Flags().StringVar(&path, "envoy-path", "", "path of an Envoy binary, which is used instead of any other")
	return c
}
