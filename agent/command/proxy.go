package command

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pilotfish-mesh/pilotfish/agent"
	"github.com/pilotfish-mesh/pilotfish/agent/config"
	"github.com/pilotfish-mesh/pilotfish/agent/logging"
	"github.com/pilotfish-mesh/pilotfish/internal/backoff"
	"github.com/pilotfish-mesh/pilotfish/internal/cgroup"
	"github.com/pilotfish-mesh/pilotfish/internal/processors"
	"github.com/pilotfish-mesh/pilotfish/internal/suggest"
	"github.com/pilotfish-mesh/pilotfish/internal/termtext"
	"github.com/pilotfish-mesh/pilotfish/internal/usage"
)

const proxyHelp = `Run Envoy as a proxy of the mesh: start and supervise Envoy, serve
certificates and the control plane's configuration to Envoy, and drain Envoy
before a stop.

Sources of the configuration in ascending precedence: defaults, the mesh file
(--meshConfig), PROXY_CONFIG, the pod's annotation proxy.istio.io/config, the
other environment variables, flags. Paths are relative to the working directory.
--dry-run shows each value with its source.

SIGTERM and SIGINT drain and then stop the proxy; a second signal stops it at
once. SIGUSR2 drains the proxy without stopping it. The status port (15020)
responds until the agent exits: GET /healthz/ready?format=json reports why the
proxy is not ready.

Exit codes:
  0      stopped on request
  1      an error; the last line describes it
  2      wrong flags or configuration
  127    no suitable Envoy was found
  other  Envoy exited unexpectedly: its exit code, or 128 plus the number of the
         signal that killed it (137: SIGKILL, which the kernel also sends when
         memory runs out)`

func newProxyCommand() *cobra.Command {
	o := &proxyOptions{}
	c := &cobra.Command{
		Use:     "proxy [sidecar|router|waypoint]",
		Short:   "Run Envoy as a sidecar or gateway of the mesh",
		Long:    proxyHelp,
		Example: "  pilotfish-agent proxy sidecar\n  pilotfish-agent proxy router --dry-run -o yaml",
		Args:    cobra.ArbitraryArgs, // Istio's agent ignores other arguments
		// Unknown flags are ignored, because pod templates may contain flags of other versions of Istio's agent.
		FParseErrWhitelist: cobra.FParseErrWhitelist{UnknownFlags: true},
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.proxy(cmd, args)
		},
	}
	o.addTo(c)
	o.log.AddTo(c.Flags())
	c.Flags().BoolVar(&o.dryRun, "dry-run", false, "print the configuration with the source of each value and the bootstrap, then exit")
	c.Flags().StringVarP(&o.format, "output", "o", formatTable, "format of --dry-run: table, json or yaml")
	usage.SetCompletions(c, "output", formatTable, formatJSON, formatYAML)
	c.Flags().SortFlags = false
	return c
}

// proxyOptions are the flags of the commands that resolve a proxy's configuration.
type proxyOptions struct {
	flags        config.Flags
	dryRun       bool
	format       string
	log          logging.Options
	awaitAddress func() []netip.Addr // see config.Inputs.AwaitAddress
}

// proxyTypes are the shell completions of the argument TYPE. A tab separates each value from its description.
var proxyTypes = []string{"sidecar\tproxy of one workload", "router\tgateway", "waypoint\tgateway of a namespace"}

// addTo adds the flags except those of the log, and the completion of the proxy type.
func (o *proxyOptions) addTo(c *cobra.Command) {
	c.ValidArgsFunction = func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveDefault
		}
		return proxyTypes, cobra.ShellCompDirectiveNoFileComp
	}
	f := c.Flags()
	f.StringVar(&o.flags.MeshConfig, "meshConfig", config.DefaultMeshFile, "file with Istio's MeshConfig")
	f.StringVar(&o.flags.Domain, "domain", "", "DNS domain of the workload, which is the last part of the node ID (default: <namespace>.svc.cluster.local)")
	f.StringVar(&o.flags.ServiceCluster, "serviceCluster", "istio-proxy", "name of the workload in statistics and traces")
	f.StringVar(&o.flags.LogLevel, "proxyLogLevel", "warning", "log level of Envoy, optionally with levels of components, such as info,upstream:debug")
	f.StringVar(&o.flags.ComponentLogLevel, "proxyComponentLogLevel", "", "log levels of Envoy's components, such as upstream:debug,config:trace")
	f.IntVar(&o.flags.Concurrency, "concurrency", 0, "number of Envoy's worker threads (default: concurrency of ProxyConfig, else the CPU limit, else the number of cores)")
	f.StringVar(&o.flags.OutlierLog, "outlierLogPath", "", "file in which Envoy logs the endpoints that outlier detection ejects (default: no log)")
	f.StringVar(&o.flags.EnvoyPath, "envoy-path", "", "path of the Envoy binary (default: ENVOY_PATH, else pilotfish's cache, else envoy in PATH)")
	f.BoolVar(&o.flags.Restart, "restart", false,
		"restart Envoy when it exits, within a crash budget; without this flag the agent exits too, for Kubernetes or systemd to restart it")
	f.StringVar(&o.flags.TemplateFile, "templateFile", "", "file with a complete bootstrap in JSON or YAML; it replaces the generated bootstrap")
	f.BoolVar(&o.flags.Profiling, "profiling", true, "serve pprof profiles of the agent on the status port, to loopback clients only")
	f.IntVar(&o.flags.TokenPort, "stsPort", 0, "loopback port of the token exchange (default: 15463 if TOKEN_EXCHANGE_URL is set, else none)")
	addIgnoredFlag(f, "tokenManagerPlugin") // replaced by TOKEN_EXCHANGE_URL
}

// addIgnoredFlag adds a hidden flag of Istio's agent that has no effect. The flag expects a value, so that the parser
// does not read the value as an argument.
func addIgnoredFlag(f *pflag.FlagSet, name string) {
	f.String(name, "", "accepted for compatibility with Istio's pilot-agent; has no effect")
	_ = f.MarkHidden(name)
}

func (o *proxyOptions) resolve(cmd *cobra.Command, args []string) (*config.Config, error) {
	if len(args) > 0 {
		o.flags.Type = args[0]
	}
	warnings := commandLineWarnings(cmd, args)
	o.flags.LogAsJSON = o.log.JSON
	o.flags.Changed = map[string]bool{}
	cmd.Flags().Visit(func(f *pflag.Flag) { o.flags.Changed[f.Name] = true })
	dir, err := os.Getwd()
	if err != nil {
		return nil, fmt.Errorf("getting the working directory, which is the base of relative paths: %w", err)
	}
	c, err := config.Resolve(config.Inputs{
		Flags: o.flags, Env: os.Environ(), Interfaces: interfaceAddresses, InterfaceAddresses: addressesOfInterface, LookupHost: lookupHost, AwaitAddress: o.awaitAddress, CacheDir: envoyCache(),
		WorkingDir: dir, Limits: cgroup.Self(), Cloud: config.QueryCloud, DetectExternalServer: detectExternalServer,
	})
	if err != nil {
		return nil, usageError{err}
	}
	c.Warnings = append(warnings, c.Warnings...)
	return c, nil
}

func (o *proxyOptions) proxy(cmd *cobra.Command, args []string) error {
	started := time.Now()
	if o.dryRun {
		return o.print(cmd, args, true)
	}
	reopen := notifyReopen()
	c, log, err := o.prepare(cmd, args)
	if err != nil {
		return err
	}
	defer log.Close()
	return runAgent(cmd.Context(), c, log, started, reopen)
}

// prepare opens the log, resolves the configuration, and logs its warnings. Unless the configuration allows core dumps,
// it protects the agent's memory. The caller must close the log.
func (o *proxyOptions) prepare(cmd *cobra.Command, args []string) (*config.Config, *logging.Log, error) {
	if err := checkSupported(); err != nil {
		return nil, nil, err
	}
	logging.IgnoreSIGPIPE()
	log, err := o.log.Open(termtext.Raw(cmd.OutOrStdout()), termtext.Raw(cmd.ErrOrStderr()))
	if err != nil {
		return nil, nil, usageError{err}
	}
	o.awaitAddress = func() []netip.Addr {
		return awaitAddress(cmd.Context(), log.Logger, interfaceAddresses, addressTimeout)
	}
	c, err := o.resolve(cmd, args)
	if err != nil {
		return nil, nil, errors.Join(err, log.Close())
	}
	for _, warning := range c.Warnings {
		log.Warn(warning)
	}
	if !c.Dumpable {
		if err := protectMemory(); err != nil {
			log.Warn("cannot protect the agent's memory from other processes of its user", "error", err)
		}
	}
	return c, log, nil
}

// runAgent runs the agent until a signal stops it or it fails. It returns nil if Envoy exited unexpectedly with code 0.
func runAgent(ctx context.Context, c *config.Config, logger *logging.Log, started time.Time, reopen chan os.Signal) error {
	signals := handleSignals(ctx, logger.Logger)
	defer signals.stop()
	a, err := agent.New(agent.Options{
		Config: c, Logger: logger.Logger, Log: logger, Started: started,
		ShortenShutdown: signals.shorten, Drain: signals.drain,
		EnvoyOutput: logger.WriteEnvoyLine, OnFirstReady: processors.Limit, // the start has parallel work
	})
	if err != nil {
		return err
	}
	defer reopenOnSignal(a, reopen)()
	stopNotifier := a.NotifySystemd(signals.ctx)
	err = a.Run(signals.ctx)
	stopNotifier(err)
	var ended *agent.EnvoyEndedError
	if errors.As(err, &ended) && ended.Exit.ExitCode() == 0 {
		logger.Info("Envoy exited unexpectedly, with code 0")
		return nil
	}
	return err
}

// commandLineWarnings returns a warning for each argument and flag without an effect.
func commandLineWarnings(cmd *cobra.Command, args []string) []string {
	var warnings []string
	for i, arg := range args {
		if i > 0 {
			warnings = append(warnings, fmt.Sprintf("argument %q has no effect; write only the proxy type", arg))
		}
	}
	for _, name := range unknownFlags(cmd.Flags(), os.Args[1:]) {
		text := fmt.Sprintf("flag %s is unknown and has no effect", name)
		if meant := suggest.ClosestWithin(name, flagNames(cmd.Flags()), config.MaxTypos(name)); meant != "" {
			text += "; did you mean " + meant + "?"
		}
		warnings = append(warnings, text)
	}
	return warnings
}

// unknownFlags returns the flags on a command line that the set known does not contain.
func unknownFlags(known *pflag.FlagSet, commandLine []string) []string {
	var unknown []string
	for _, arg := range commandLine {
		if arg == "--" {
			break
		}
		name, isFlag := strings.CutPrefix(arg, "--")
		name, _, _ = strings.Cut(name, "=")
		if isFlag && known.Lookup(name) == nil {
			unknown = append(unknown, "--"+name)
		}
	}
	return unknown
}

// flagNames returns the names of the flags in set, each with its leading dashes.
func flagNames(set *pflag.FlagSet) []string {
	var names []string
	set.VisitAll(func(f *pflag.Flag) { names = append(names, "--"+f.Name) })
	return names
}

// interfaceAddresses returns the machine's addresses except loopback and link-local ones, IPv4 first.
func interfaceAddresses() ([]netip.Addr, error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	return globalAddresses(all), nil
}

// addressesOfInterface returns the addresses of one interface except loopback and link-local ones.
func addressesOfInterface(name string) ([]netip.Addr, error) {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return nil, err
	}
	all, err := i.Addrs()
	return globalAddresses(all), err
}

// lookupTimeout is the timeout of lookupHost. The agent's start waits for the lookup.
const lookupTimeout = 5 * time.Second

// lookupHost returns the IP addresses of a host name.
func lookupHost(host string) ([]netip.Addr, error) {
	ctx, cancel := context.WithTimeout(context.Background(), lookupTimeout)
	defer cancel()
	return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
}

func globalAddresses(all []net.Addr) []netip.Addr {
	var found []netip.Addr
	for _, a := range all {
		prefix, err := netip.ParsePrefix(a.String())
		if err == nil && prefix.Addr().IsGlobalUnicast() {
			found = append(found, prefix.Addr().Unmap())
		}
	}
	slices.SortStableFunc(found, func(a, b netip.Addr) int { return a.BitLen() - b.BitLen() })
	return found
}

const (
	// addressTimeout is the maximum time to wait for an IP address. The agent may start before the network.
	addressTimeout  = 2 * time.Minute
	addressInterval = 100 * time.Millisecond
)

// awaitAddress calls look repeatedly until look returns an IP address or timeout has passed. It returns the addresses,
// or nil after the timeout.
func awaitAddress(ctx context.Context, log *slog.Logger, look func() ([]netip.Addr, error), timeout time.Duration) []netip.Addr {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	log.Warn("this machine has only loopback addresses; waiting for another address (set INSTANCE_IP to skip the wait)", "timeout", timeout)
	for {
		if !backoff.Sleep(ctx, addressInterval) {
			return nil
		}
		if found, err := look(); err == nil && len(found) > 0 {
			return found
		}
	}
}

// envoyCache returns the directory into which this project's scripts download Envoy. It returns "" if the user has no
// cache directory.
func envoyCache() string {
	dir, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "pilotfish", "envoy")
}
