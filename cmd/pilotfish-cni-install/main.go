// Command pilotfish-cni-install is the node agent of the CNI plugin. It installs the plugin, and repairs the installation.
// It answers the plugin's queries about the node's pods. It also checks the redirection of running pods, and repairs it. See
// docs/cni.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/pilotfish-mesh/pilotfish/internal/helptext"
	"github.com/pilotfish-mesh/pilotfish/internal/termtext"
	"github.com/pilotfish-mesh/pilotfish/internal/umask"
	"github.com/pilotfish-mesh/pilotfish/internal/usage"
	"github.com/pilotfish-mesh/pilotfish/version"
)

func main() {
	umask.ClearOwnerBits()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	root := command(filepath.Base(os.Args[0]), os.LookupEnv)
	root.SetContext(ctx)
	_, err := usage.Execute(root)
	stop()
	if err != nil {
		fmt.Fprintln(termtext.NewWriter(os.Stderr), "pilotfish-cni-install:", err)
		if errors.As(err, new(usage.Error)) {
			os.Exit(usage.ExitCode)
		}
		os.Exit(1)
	}
}

// command returns the root command. name is the name with which the program was started, which may be Istio's. lookup
// reads the environment.
func command(name string, lookup func(string) (string, bool)) *cobra.Command {
	s := &settings{lookup: lookup, asIstio: name == istioName}
	root := &cobra.Command{
		Use:   "pilotfish-cni-install",
		Short: "Run the node agent of the CNI plugin",
		Long: "Run the node agent of the CNI plugin. The agent installs the plugin on this\n" +
			"node and repairs the installation. It serves the node's pods to the plugin. It\n" +
			"checks the redirection of running pods and repairs pods without it.\n\n" +
			"Each flag can also be set with an environment variable: the flag's name in\n" +
			"upper case, with underscores. For example, CHECK_INTERVAL sets --check-interval.",
		Args:          usage.Args(),
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       version.Version,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := errors.Join(s.resolve(c.Root().PersistentFlags()), s.resolveAPI()); err != nil {
				return err
			}
			logger := s.logger(c.ErrOrStderr())
			for _, w := range s.warnings {
				logger.Warn(w)
			}
			return run(c.Context(), s, logger)
		},
	}
	s.register(root.PersistentFlags())
	root.AddCommand(&cobra.Command{
		Use:   "uninstall",
		Short: "Uninstall the plugin from this node: configuration, kubeconfig, binary",
		Long: `Uninstall the plugin from this node: first its entry in the CNI
configuration, then its kubeconfig, and last its binary. New pods can start
during the removal. The traffic of pods that start afterwards is not redirected.

If sandboxes still refer to the plugin, a small replacement of the binary (the
tombstone) remains until they are removed. Without it, their removal would fail.`,
		Args: usage.Args(),
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
	usage.Install(root)
	helptext.WrapFlags(root)
	return root
}

// run runs the node agent until ctx ends.
func run(ctx context.Context, s *settings, logger *slog.Logger) error {
	a, err := newNodeAgent(ctx, s, logger)
	if err != nil {
		return err
	}
	logger.Info("the node agent of the CNI plugin starts", "version", version.Version, "node", s.node, "mode", s.mode, "repair", s.repairMode)
	return a.run(ctx)
}
