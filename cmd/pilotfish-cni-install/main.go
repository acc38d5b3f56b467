// Command pilotfish-cni-install is the node agent of the CNI plugin: it installs the plugin and keeps it installed, tells
// it the node's pods, checks the redirection of those that run, and repairs what slipped past; see docs/cni.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/pilotfish-mesh/pilotfish/internal/umask"
	"github.com/pilotfish-mesh/pilotfish/version"
)

func main() {
	umask.SpareOwner()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	err := command(os.LookupEnv).ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "pilotfish-cni-install:", err)
		os.Exit(1)
	}
}

// command is the command line. lookup reads the environment.
func command(lookup func(string) (string, bool)) *cobra.Command {
	s := &settings{lookup: lookup}
	root := &cobra.Command{
		Use:           "pilotfish-cni-install",
		Short:         "Install the CNI plugin on this node, serve it, and keep watch over the pods that it redirected",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       version.Version,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := errors.Join(s.resolve(c.Root().PersistentFlags()), s.resolveAPI()); err != nil {
				return err
			}
			return run(c.Context(), s, s.logger(c.ErrOrStderr()))
		},
	}
	s.register(root.PersistentFlags())
	root.AddCommand(&cobra.Command{
		Use:   "uninstall",
		Short: "Take the plugin away from this node: configuration, kubeconfig, binary",
		Long: "Take the plugin away from this node, in the order in which no new pod asks for what is gone: its place in the CNI\n" +
			"configuration, its kubeconfig, its binary. While sandboxes name the plugin a tombstone stays in the binary's place,\n" +
			"which lets them end. Pods that start from then on are not redirected.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := s.resolve(c.Root().PersistentFlags()); err != nil {
				return err
			}
			in, err := newInstaller(s, nil, nil, s.logger(c.ErrOrStderr()))
			if err != nil {
				return err
			}
			return in.Uninstall()
		},
	})
	return root
}

// run is the node agent until the context ends.
func run(ctx context.Context, s *settings, logger *slog.Logger) error {
	a, err := compose(ctx, s, logger)
	if err != nil {
		return err
	}
	logger.Info("the node agent of the CNI plugin begins", "version", version.Version, "node", s.node, "mode", s.mode, "repair", s.repairMode)
	return a.run(ctx)
}
