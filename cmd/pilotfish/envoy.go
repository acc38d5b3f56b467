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
		Short: "Show which Envoy is used, and where it was found",
		Long: `Show which Envoy a mesh on this machine uses: its path, its version, and where it was found. The search order is
--envoy-path, ENVOY_PATH, the project's cache (which 'make envoy' fills), and PATH.

It exits with status 0 when a usable Envoy was found, and 1 otherwise.`,
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
	c.Flags().StringVar(&path, "envoy-path", "", "Envoy to use before any other")
	return c
}
