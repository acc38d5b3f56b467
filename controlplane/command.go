package controlplane

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pilotfish-mesh/pilotfish/controlplane/ca"
	"github.com/pilotfish-mesh/pilotfish/controlplane/translate"
	"github.com/pilotfish-mesh/pilotfish/internal/atomicfile"
	"github.com/pilotfish-mesh/pilotfish/internal/fetchguard"
	"github.com/pilotfish-mesh/pilotfish/internal/tlspolicy"
	"github.com/pilotfish-mesh/pilotfish/internal/usage"
)

// BlockedKeyNetworksVariable is Istio's environment variable for KeyFetching.Blocked.
const BlockedKeyNetworksVariable = "BLOCKED_CIDRS_IN_JWKS_URIS"

// TLSPolicyVariable is Istio's environment variable for Config.TLSPolicy.
const TLSPolicyVariable = "COMPLIANCE_POLICY"

// HTTP10Variable is Istio's environment variable for Config.AcceptHTTP10.
const HTTP10Variable = "PILOT_HTTP10"

// Extension is a part of the control plane that the program adds to the command, because this package does not link it.
type Extension struct {
	// AddFlags adds the flags of the extension.
	AddFlags func(*pflag.FlagSet)
	// Configure changes the configuration according to the flags.
	Configure func(context.Context, *Config) error
	// Run runs alongside the server until the context ends. It may be nil.
	Run func(context.Context, *Server)
	// SourceFlag is the name of a flag that selects a source of documents.
	SourceFlag string
}

// NewCommand returns the command `pilotfish control-plane` with the extensions.
func NewCommand(extensions ...Extension) *cobra.Command {
	var cfg Config
	var logLevel, blockedKeyNetworks string
	cmd := &cobra.Command{
		Use:   "control-plane --config-dir DIR|--kubernetes",
		Short: "Run the control plane: serve xDS and certificates to proxies",
		Long: `Run the control plane in the foreground, until SIGINT or SIGTERM. It reads Istio
resources and Kubernetes Services from a directory that it watches, from a
Kubernetes cluster, and from the configSources of the mesh configuration. With
--consul-address, it also reads services from Consul. By default it listens on
loopback; --address changes that. Its ports are:
  15010  xDS in plaintext; by default only if --address is loopback
  15012  xDS and the certificate authority, over TLS; clients authenticate with
         a token or a certificate
  15014  metrics, health and debug pages (/debug lists them); debug pages
         require a token or a certificate, except from root and the control
         plane's user over loopback
  15016  token exchange (RFC 8693) and the keys of its tokens (OpenID Connect
         discovery), over HTTPS

Port number -1 selects a free port, and -2 disables the port. The environment
variable COMPLIANCE_POLICY (fips-140-2, fips-140-3 or pqc) restricts the TLS
versions and ciphers of ports 15012 and 15016. With PILOT_HTTP10=true, all
proxies accept HTTP/1.0.

The control plane refuses an invalid document, and continues to use its last
valid version. The log and /debug/problems show the position of the error and
the remedy. The certificate authority's root and keys are stored in the state
directory.

Exit codes:
  0  graceful stop
  1  the control plane could not start, or failed
  2  wrong flags`,
		Example: `  pilotfish control-plane --config-dir ./config
  pilotfish control-plane --kubernetes --kubeconfig ~/.kube/config
  pilotfish token --service-account reviews   # a token for an agent`,
		Args: usage.Args(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cmd.SilenceUsage = true
			logger, err := newLogger(cmd, logLevel)
			if err != nil {
				return err
			}
			cfg.Logger, cfg.TLSPolicy = logger, tlspolicy.Policy(os.Getenv(TLSPolicyVariable))
			cfg.AcceptHTTP10, _ = strconv.ParseBool(os.Getenv(HTTP10Variable)) // invalid values mean false
			if cfg.Keys.Blocked, err = fetchguard.ParseNetworks(blockedKeyNetworks); err != nil {
				return usage.Error{Err: fmt.Errorf("--jwks-blocked-cidrs (%s): %w", BlockedKeyNetworksVariable, err)}
			}
			if err := checkConsulFlags(cmd.Flags(), cfg.Consul); err != nil {
				return err
			}
			return runCommand(cmd.Context(), cfg, extensions)
		},
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&cfg.ConfigDirs, "config-dir", nil, "directory of YAML documents, or one file; may be repeated")
	flags.Var(&cfg.OnInvalidPolicy, "on-invalid-policy", "effect of an invalid AuthorizationPolicy or PeerAuthentication that never had a valid version: deny all traffic to its workloads, or ignore the policy")
	flags.StringVar(&cfg.StateDir, "state-dir", "", "directory of the certificate authority (default "+defaultStateText+")")
	flags.StringVar(&cfg.Address, "address", "127.0.0.1", "IP address to listen on")
	flags.IntVar(&cfg.Ports.Plain, "port", 0, "port for plaintext xDS, whose clients are not authenticated; -2: none (default: 15010 if --address is loopback, otherwise none)")
	flags.IntVar(&cfg.Ports.Secure, "secure-port", 15012, "port for xDS and the CA over TLS")
	flags.IntVar(&cfg.Ports.Monitoring, "monitoring-port", 15014, "port for metrics, health and debug pages")
	flags.IntVar(&cfg.Ports.Tokens, "token-port", 15016, "port for token exchange over HTTPS")
	flags.StringVar(&cfg.TokenIssuer, "token-issuer", "", "issuer of exchanged tokens, such as https://mesh.example (default: the address of the token port)")
	flags.StringVar(&cfg.MeshConfigFile, "mesh-config", "", "file of Istio's MeshConfig, in YAML")
	flags.StringVar(&cfg.ConfigSourceTokenFile, "config-source-token-file", "", "file with a token that the control plane sends to the xds:// sources of the mesh configuration, over TLS")
	flags.StringSliceVar(&cfg.DocumentReaders, "document-readers", nil, "identities of other control planes, which may read all Istio resources over the secure port (as their xds:// source): NAMESPACE/ACCOUNT or SPIFFE ID (default: none)")
	flags.StringVar(&cfg.TrustDomain, "trust-domain", "", "trust domain of all identities (default: the trust domain of the mesh configuration, or cluster.local)")
	flags.BoolVar(&cfg.NamespaceGatewaySecrets, "namespace-gateway-secrets", false, "send a gateway's Secrets to every service account of the namespace that claims the gateway's labels, not only to accounts of known workloads that the Gateway selects")
	authorityFlags(flags, &cfg.Authority)
	flags.DurationVar(&cfg.Keys.Refresh, "jwks-refresh", 20*time.Minute, "interval at which the control plane fetches the keys of token issuers again")
	flags.StringVar(&cfg.Keys.RootsFile, "jwks-root-cert", "", "PEM file of root certificates that the control plane trusts, in addition to the system's, when it fetches keys of token issuers")
	flags.StringVar(&blockedKeyNetworks, "jwks-blocked-cidrs", os.Getenv(BlockedKeyNetworksVariable), "comma-separated networks from which the control plane does not fetch keys of token issuers, in addition to link-local and metadata addresses (default: "+BlockedKeyNetworksVariable+")")
	flags.BoolVar(&cfg.Keys.AllowLoopback, "jwks-allow-loopback", false, "fetch keys of token issuers also from loopback addresses, even if --address is not loopback")
	flags.BoolVar(&cfg.Keys.ByProxy, "jwks-by-proxy", false, "let proxies fetch the keys of token issuers that are services of the mesh")
	flags.TextVar(&cfg.VirtualAddresses, "virtual-addresses", netip.Prefix{}, "IPv4 `network`, such as 240.240.0.0/16, from which services without an address receive a virtual address")
	flags.DurationVar(&cfg.Debounce.After, "debounce-after", 10*time.Millisecond, "time without further changes after which changes are pushed to proxies")
	flags.DurationVar(&cfg.Debounce.Max, "debounce-max", time.Second, "maximum time from a change until it is pushed to proxies")
	flags.IntVar(&cfg.Admission.Rate, "stream-rate", 500, "maximum number of new streams of proxies per second; negative: no limit")
	flags.DurationVar(&cfg.Admission.Wait, "stream-wait", 2*time.Second, "maximum time that a new stream waits because of --stream-rate; then it is refused")
	flags.IntVar(&cfg.MaxConnections, "max-connections", 0, "maximum number of concurrent connections of proxies, and also of their streams; negative: no limit (default: seven eighths of the limit of open files)")
	flags.DurationVar(&cfg.AuthTimeout, "auth-timeout", defaultAuthTimeout, "time after which the control plane closes a connection without an authenticated stream (on the plaintext port: without any stream); negative: never")
	flags.BoolVar(&cfg.AutomaticScope, "automatic-scope", false, "send sidecars only the virtual hosts and clusters that their workloads use; their Envoys request others on demand")
	flags.DurationVar(&cfg.OnDemandTimeout, "on-demand-timeout", translate.DefaultOnDemandTimeout, "maximum time that a request waits for an on-demand resource while no control plane responds")
	EndpointFlags(flags, &cfg.Endpoints)
	consulFlags(flags, &cfg.Consul)
	flags.StringVar(&logLevel, "log-level", "info", "minimum level of log lines: debug, info, warn or error")
	sourceFlags := []string{"config-dir", "mesh-config", "consul-address"}
	for _, extension := range extensions {
		extension.AddFlags(flags)
		sourceFlags = append(sourceFlags, extension.SourceFlag)
	}
	usage.SetOneRequired(cmd, sourceFlags...)
	usage.SetCompletions(cmd, "log-level", "debug", "info", "warn", "error")
	return cmd
}

func runCommand(ctx context.Context, cfg Config, extensions []Extension) error {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if cfg.StateDir, err = stateDir(cfg.StateDir); err != nil {
		return err
	}
	limitHeap()
	for _, extension := range extensions {
		if err := extension.Configure(ctx, &cfg); err != nil {
			return err
		}
	}
	server, err := New(cfg)
	if err != nil {
		return err
	}
	if len(server.sources) == 0 {
		_ = server.Close()
		return errors.New("there is no source of documents: set --config-dir, --kubernetes or --consul-address, or configSources in the file of --mesh-config")
	}
	ctx, end := context.WithCancel(ctx)
	var running sync.WaitGroup
	for _, extension := range extensions {
		if extension.Run != nil {
			running.Go(func() { extension.Run(ctx, server) })
		}
	}
	err = server.Run(ctx)
	end()
	running.Wait()
	return err
}

// NewTokenCommand returns the command `pilotfish token`.
func NewTokenCommand() *cobra.Command {
	var dir, namespace, serviceAccount, out string
	var ttl time.Duration
	cmd := &cobra.Command{
		Use:   "token --namespace NS --service-account SA",
		Short: "Issue a token for a workload's service account",
		Long: `Issue a token that proves a workload's service account to the control plane, and
print it or write it to a file (mode 0600). The certificate authority in the
state directory signs it. An agent reads the token from
./var/run/secrets/tokens/istio-token.

Until the token expires, a client with the token can request certificates for
the service account.`,
		Example: `  pilotfish token --service-account reviews --ttl 24h --out istio-token`,
		Args:    usage.Args(),
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
	flags.DurationVar(&ttl, "ttl", time.Hour, "lifetime of the token, such as 24h")
	flags.StringVar(&out, "out", "", "file to which the token is written (default: print the token)")
	return cmd
}

// writeToken writes token to the file path, with mode 0600. It replaces the file atomically, so that an agent never
// reads a partial token.
func writeToken(path, token string) error {
	if err := atomicfile.Write(path, []byte(token)); err != nil {
		return fmt.Errorf("writing the token to %s: %w", path, err)
	}
	return nil
}

const defaultStateText = "$XDG_STATE_HOME/pilotfish, or ~/.local/state/pilotfish"

func stateDir(dir string) (string, error) {
	if dir != "" {
		return dir, nil
	}
	if dir := os.Getenv("XDG_STATE_HOME"); dir != "" {
		return filepath.Join(dir, "pilotfish"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("finding the state directory: %w; set --state-dir", err)
	}
	return filepath.Join(home, ".local", "state", "pilotfish"), nil
}

func newLogger(cmd *cobra.Command, level string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, usage.Error{Err: fmt.Errorf("--log-level %q: use debug, info, warn or error", level)}
	}
	return slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: l})), nil
}
