package controlplane

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/pilotfish-mesh/pilotfish/controlplane/ca"
	"github.com/pilotfish-mesh/pilotfish/controlplane/translate"
	"github.com/pilotfish-mesh/pilotfish/internal/atomicfile"
)

// NewCommand is `pilotfish control-plane`.
func NewCommand() *cobra.Command {
	var cfg Config
	var logLevel string
	cmd := &cobra.Command{
		Use:   "control-plane --config-dir DIR",
		Short: "Run the control plane: Istio resources from files, xDS and certificates for proxies",
		Long: `Runs the control plane in the foreground, until SIGINT or SIGTERM.

It reads Istio resources and Kubernetes Services from a directory that it watches, and serves:
  15010  xDS, plaintext
  15012  xDS and the certificate authority, over TLS; callers prove who they are by token or certificate
  15014  metrics, health and debug pages (/debug lists them)
  15016  token exchange (RFC 8693) and the keys of its tokens (OpenID Connect discovery), over HTTPS
on loopback, unless --address says otherwise. A port of -1 takes a free one, -2 leaves it closed.

A bad document is refused alone, and its last good version stays in force; the log and /debug/problems say
where it is wrong and how to mend it. The authority's root and keys are kept in the state directory.

Exit codes: 0 after an ordered end, 1 when it could not start or failed, 2 for a wrong command line.`,
		Example: `  pilotfish control-plane --config-dir ./config
  pilotfish token --namespace default --service-account reviews   # for an agent's token file`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cmd.SilenceUsage = true
			logger, err := newLogger(cmd, logLevel)
			if err != nil {
				return err
			}
			cfg.Logger = logger
			return runCommand(cmd.Context(), cfg)
		},
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&cfg.ConfigDirs, "config-dir", nil, "directory (or file) of YAML documents; may be repeated")
	flags.StringVar(&cfg.StateDir, "state-dir", "", "directory of the certificate authority (default "+defaultStateText+")")
	flags.StringVar(&cfg.Address, "address", "127.0.0.1", "IP address to listen on")
	flags.IntVar(&cfg.Ports.Plain, "port", 15010, "port for plaintext xDS")
	flags.IntVar(&cfg.Ports.Secure, "secure-port", 15012, "port for xDS and the CA over TLS")
	flags.IntVar(&cfg.Ports.Monitoring, "monitoring-port", 15014, "port for metrics, health and debug pages")
	flags.IntVar(&cfg.Ports.Tokens, "token-port", 15016, "port for token exchange over HTTPS")
	flags.StringVar(&cfg.TokenIssuer, "token-issuer", "", "issuer of exchanged tokens, such as https://mesh.example (default: the address of the token port)")
	flags.StringVar(&cfg.MeshConfigFile, "mesh-config", "", "file of Istio's MeshConfig, in YAML")
	flags.StringVar(&cfg.TrustDomain, "trust-domain", "", "trust domain of all identities (default: the mesh configuration's, or cluster.local)")
	authorityFlags(flags, &cfg.Authority)
	flags.DurationVar(&cfg.Keys.Refresh, "jwks-refresh", 20*time.Minute, "how often the keys of token issuers are fetched anew")
	flags.StringVar(&cfg.Keys.RootsFile, "jwks-root-cert", "", "file of roots in PEM that are trusted, beside the system's, when keys of token issuers are fetched")
	flags.BoolVar(&cfg.Keys.ByProxy, "jwks-by-proxy", false, "let proxies fetch the keys of token issuers that are services of the mesh")
	flags.TextVar(&cfg.VirtualAddresses, "virtual-addresses", netip.Prefix{}, "`network` of IPv4, such as 240.240.0.0/16, out of which services without an address get one")
	flags.DurationVar(&cfg.Debounce.After, "debounce-after", 10*time.Millisecond, "how long changes have to pause before they are pushed")
	flags.DurationVar(&cfg.Debounce.Max, "debounce-max", time.Second, "how long a change waits at most before it is pushed")
	flags.IntVar(&cfg.Admission.Rate, "stream-rate", 500, "how many new streams of proxies are let in a second; negative is no limit")
	flags.DurationVar(&cfg.Admission.Wait, "stream-wait", 2*time.Second, "how long a new stream waits for its turn at most, before it is refused")
	flags.IntVar(&cfg.MaxConnections, "max-connections", 0, "how many connections of proxies, and streams, there may be at a time; negative is no limit (default: seven eighths of the files that the process may have open)")
	flags.BoolVar(&cfg.AutomaticScope, "automatic-scope", false, "have sidecars hold the virtual hosts and clusters that their workloads use, and ask for others when needed")
	flags.DurationVar(&cfg.OnDemandTimeout, "on-demand-timeout", translate.DefaultOnDemandTimeout, "how long a request waits at most for what its sidecar asks for, while no control plane answers")
	flags.StringVar(&logLevel, "log-level", "info", "debug, info, warn or error")
	_ = cmd.MarkFlagRequired("config-dir") // the flag exists
	return cmd
}

func runCommand(ctx context.Context, cfg Config) error {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if cfg.StateDir, err = stateDir(cfg.StateDir); err != nil {
		return err
	}
	go giveBack(ctx)
	server, err := New(cfg)
	if err != nil {
		return err
	}
	return server.Run(ctx)
}

// NewTokenCommand is `pilotfish token`.
func NewTokenCommand() *cobra.Command {
	var dir, namespace, serviceAccount, out string
	var ttl time.Duration
	cmd := &cobra.Command{
		Use:   "token --namespace NS --service-account SA",
		Short: "Issue a token with which an agent proves its workload's service account to the control plane",
		Long: `Issues a token, signed by the certificate authority in the state directory, and prints it or writes it to a file
(mode 0600). An agent reads it from ./var/run/secrets/tokens/istio-token.

Whoever has the token gets certificates for that service account until it expires.`,
		Example: `  pilotfish token --namespace default --service-account reviews --ttl 24h --out istio-token`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cmd.SilenceUsage = true
			dir, err := stateDir(dir)
			if err != nil {
				return err
			}
			authority, err := ca.Load(dir, ca.Options{MustExist: true})
			if err != nil {
				return err
			}
			token, err := authority.IssueToken(namespace, serviceAccount, ttl)
			if err != nil {
				return err
			}
			if out == "" {
				fmt.Fprintln(cmd.OutOrStdout(), token)
				return nil
			}
			return writeToken(out, token)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&dir, "state-dir", "", "directory of the certificate authority (default "+defaultStateText+")")
	flags.StringVar(&namespace, "namespace", "default", "namespace of the service account")
	flags.StringVar(&serviceAccount, "service-account", "default", "service account that the token proves")
	flags.DurationVar(&ttl, "ttl", time.Hour, "how long the token is good for")
	flags.StringVar(&out, "out", "", "file to write the token to, instead of printing it")
	return cmd
}

// writeToken replaces the file whole, so that an agent never reads half a token, nor anyone else any of it.
func writeToken(path, token string) error {
	if err := atomicfile.Write(path, []byte(token)); err != nil {
		return fmt.Errorf("writing the token to %s: %w", path, err)
	}
	return nil
}

const defaultStateText = "$XDG_STATE_HOME/pilotfish, or ~/.local/state/pilotfish"

func stateDir(given string) (string, error) {
	if given != "" {
		return given, nil
	}
	if dir := os.Getenv("XDG_STATE_HOME"); dir != "" {
		return filepath.Join(dir, "pilotfish"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("no place for the control plane's state: %w; name one with --state-dir", err)
	}
	return filepath.Join(home, ".local", "state", "pilotfish"), nil
}

func newLogger(cmd *cobra.Command, level string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("--log-level %q: use debug, info, warn or error", level)
	}
	return slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: l})), nil
}
