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
		Short: "Show which Envoy is used, and why that one",
		Long: `Show which Envoy a mesh of this machine is run with: its path, its version, and where it was found. It is looked for in
--envoy-path, ENVOY_PATH, the project's cache (which 'make envoy' fills) and PATH, in that order.

It ends with status 0 when there is one that will do, and 1 when there is none.`,
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
			return nil
		},
	}
	c.Flags().StringVar(&path, "envoy-path", "", "Envoy to use before any other")
	return c
}
