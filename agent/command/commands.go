package command

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/pilotfish-mesh/pilotfish/agent/logging"
	"github.com/pilotfish-mesh/pilotfish/internal/helptext"
	"github.com/pilotfish-mesh/pilotfish/internal/termtext"
	"github.com/pilotfish-mesh/pilotfish/internal/umask"
	"github.com/pilotfish-mesh/pilotfish/internal/usage"
	"github.com/pilotfish-mesh/pilotfish/version"
)

// istioRedirection is Istio's name of the redirection command. A binary of this name runs only this command.
const istioRedirection = "istio-iptables"

// Commands returns the agent's commands except iptables. Both pilotfish-agent and pilotfish contain them. The caller
// prints the errors of the commands, and exits with ExitCode.
func Commands() []*cobra.Command {
	return []*cobra.Command{
		newProxyCommand(), newRunCommand(), newWaitCommand(), newRequestCommand(), newLogCommand(), newUpgradeCommand(),
		newDNSCommand(), newCertCommand(), newXDSCommand(),
		newCheckCommand(), newConfigCommand(), newBootstrapCommand(), newVersionCommand(),
	}
}

// NewRoot returns the command line of the program pilotfish-agent. redirection is its command iptables.
func NewRoot(redirection *cobra.Command) *cobra.Command {
	root := &cobra.Command{
		Use:           "pilotfish-agent",
		Short:         "Run and control Envoy as a proxy of the mesh",
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	logging.AddHiddenFlags(root.PersistentFlags())
	root.AddCommand(append(Commands(), redirection)...)
	usage.Install(root)
	helptext.WrapFlags(root)
	return root
}

// Main runs the program pilotfish-agent and returns its exit code.
func Main() int {
	umask.ClearOwnerBits()
	root := NewRoot(newRedirectionCommand())
	root.SetOut(termtext.NewWriter(os.Stdout))
	root.SetErr(termtext.NewWriter(os.Stderr))
	if name := filepath.Base(os.Args[0]); name == istioRedirection {
		root.SetArgs(append([]string{name}, os.Args[1:]...))
	}
	_, err := usage.Execute(root)
	if err != nil {
		fmt.Fprintln(root.ErrOrStderr(), "pilotfish-agent:", err)
	}
	return ExitCode(err)
}

func newVersionCommand() *cobra.Command {
	var format string
	var short bool
	c := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  usage.Args(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			text, err := versionText(format, short)
			if err == nil {
				_, err = fmt.Fprintln(cmd.OutOrStdout(), text)
			}
			return err
		},
	}
	c.Flags().StringVarP(&format, "output", "o", "", "output format: json or yaml (default: one line of text)")
	c.Flags().BoolVarP(&short, "short", "s", false, "print only the version number")
	usage.SetCompletions(c, "output", formatJSON, formatYAML)
	return c
}

func versionText(format string, short bool) (string, error) {
	info := map[string]any{"clientVersion": map[string]string{ // Istio's names
		"version": version.Version, "revision": version.Commit, "tag": version.Version, "status": version.Status(),
		"golang_version": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH,
	}}
	switch {
	case short:
		return version.Version, nil
	case format == "":
		return version.String(), nil
	case format == formatJSON:
		b, err := json.MarshalIndent(info, "", "  ")
		return string(b), err
	case format == formatYAML:
		b, err := yaml.Marshal(info)
		return strings.TrimSuffix(string(b), "\n"), err
	}
	return "", usagef("output format %q is not known; use json or yaml", format)
}
