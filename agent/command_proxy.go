package agent

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

	"github.com/pilotfish-mesh/pilotfish/internal/cgroup"
	"github.com/pilotfish-mesh/pilotfish/internal/nearest"
)

const proxyHelp = `Run Envoy as a proxy of the mesh: resolve the configuration, serve Envoy its certificates and
the control plane's configuration, start it, watch it, and drain and stop it.

The configuration is, each over those before it: defaults, the mesh file (--meshConfig), PROXY_CONFIG,
the pod's annotation proxy.istio.io/config, the other environment variables, flags. Paths are relative to
the working directory. --dry-run shows each value with its source.

SIGTERM and SIGINT drain and stop the proxy; a second one stops it at once. SIGUSR2 drains it and lets it
stay until it is told to end. The status port (15020)
answers to the end: GET /healthz/ready?format=json tells what the proxy waits for.

Exit codes:
  0      stopped when asked to
  1      something failed; the last line says what
  2      wrong flags or configuration
  127    no Envoy that will do was found
  other  Envoy ended by itself: its own code, or 128 and the number of the signal that ended it
         (137 is SIGKILL, by which the kernel also ends what uses too much memory)`

func newProxyCommand() *cobra.Command {
	o := &proxyOptions{}
	c := &cobra.Command{
		Use:     "proxy [sidecar|router|waypoint]",
		Short:   "Run Envoy as a sidecar or gateway of the mesh",
		Long:    proxyHelp,
		Example: "  pilotfish-agent proxy sidecar\n  pilotfish-agent proxy router --dry-run -o yaml",
		Args:    usageArgs(cobra.MaximumNArgs(1)),
		// Pods carry flags that other releases of Istio's agent knew.
		FParseErrWhitelist: cobra.FParseErrWhitelist{UnknownFlags: true},
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.proxy(cmd, args)
		},
	}
	o.addTo(c.Flags())
	c.Flags().BoolVar(&o.dryRun, "dry-run", false, "print the configuration with the source of each value, and the bootstrap, and end")
	c.Flags().StringVarP(&o.format, "output", "o", formatTable, "format of --dry-run: table, json or yaml")
	c.Flags().SortFlags = false
	return c
}

// proxyOptions are the flags of the commands that resolve a proxy's configuration.
type proxyOptions struct {
	flags  Flags
	dryRun bool
	format string
	log    logOptions
	await  func() []netip.Addr // see Inputs.AwaitAddress
}

func (o *proxyOptions) addTo(f *pflag.FlagSet) {
	f.StringVar(&o.flags.MeshConfig, "meshConfig", defaultMeshFile, "file with Istio's MeshConfig")
	f.StringVar(&o.flags.Domain, "domain", "", "DNS domain of the node id (default <namespace>.svc.cluster.local)")
	f.StringVar(&o.flags.ServiceCluster, "serviceCluster", "istio-proxy", "name of the workload in statistics and traces")
	f.StringVar(&o.flags.LogLevel, "proxyLogLevel", "warning", "Envoy's log level, with levels of components behind it (info,upstream:debug)")
	f.StringVar(&o.flags.ComponentLogLevel, "proxyComponentLogLevel", "", "levels of Envoy's components (upstream:debug,config:trace)")
	f.IntVar(&o.flags.Concurrency, "concurrency", 0, "Envoy's worker threads (default by ProxyConfig, or ISTIO_CPU_LIMIT, or all cores)")
	f.StringVar(&o.flags.OutlierLog, "outlierLogPath", "", "file to which Envoy logs ejected endpoints")
	f.StringVar(&o.flags.EnvoyPath, "envoy-path", "", "the Envoy to run (default ENVOY_PATH, the project's cache, PATH)")
	f.BoolVar(&o.flags.Restart, "restart", false,
		"start Envoy again when it dies, unless it keeps dying; without it the agent ends with Envoy, for an orchestrator to restart")
	o.log.addTo(f)
	f.StringVar(&o.flags.TemplateFile, "templateFile", "", "file with a whole bootstrap, in JSON or YAML")
	f.BoolVar(&o.flags.Profiling, "profiling", true, "offer profiles of the agent on the status port, to loopback")
	f.IntVar(&o.flags.TokenPort, "stsPort", 0, "port on loopback where tokens are exchanged (default 15463 with TOKEN_EXCHANGE_URL, else none)")
	inert(f, "tokenManagerPlugin") // TOKEN_EXCHANGE_URL says how tokens are exchanged
}

// inert accepts a flag of Istio's agent that means nothing here, with its value, which may stand beside it.
func inert(f *pflag.FlagSet, name string) {
	f.String(name, "", "accepted and ignored")
	_ = f.MarkHidden(name)
}

func (o *proxyOptions) resolve(cmd *cobra.Command, args []string) (*Config, error) {
	if len(args) > 0 {
		o.flags.Type = args[0]
	}
	o.flags.LogAsJSON = o.log.json
	o.flags.Given = map[string]bool{}
	cmd.Flags().Visit(func(f *pflag.Flag) { o.flags.Given[f.Name] = true })
	dir, err := os.Getwd()
	if err != nil {
		return nil, fmt.Errorf("finding the working directory, which the paths of the configuration are relative to: %w", err)
	}
	config, err := Resolve(Inputs{
		Flags: o.flags, Env: os.Environ(), Interfaces: interfaceAddresses, AwaitAddress: o.await, CacheDir: envoyCache(),
		WorkingDir: dir, Limits: cgroup.Self(), Cloud: askCloud, Outside: lookOutside(true),
	})
	if err != nil {
		return nil, usageError{err}
	}
	return config, nil
}

func (o *proxyOptions) proxy(cmd *cobra.Command, args []string) error {
	started := time.Now()
	if o.dryRun {
		return o.print(cmd, args, true)
	}
	reopen := catchReopen()
	config, log, err := o.prepare(cmd, args)
	if err != nil {
		return err
	}
	defer log.Close()
	return runAgent(cmd.Context(), config, log, started, reopen)
}

// prepare opens the log and resolves the configuration, and warns about what has no effect. The log has to be closed.
func (o *proxyOptions) prepare(cmd *cobra.Command, args []string) (*Config, *Log, error) {
	if err := supported(); err != nil {
		return nil, nil, err
	}
	hurry()
	outliveReaders()
	log, err := o.log.open(cmd.OutOrStdout(), cmd.ErrOrStderr())
	if err != nil {
		return nil, nil, err
	}
	for _, name := range unknownFlags(cmd.Flags(), os.Args[1:]) {
		if meant := nearest.Within(name, flagNames(cmd.Flags()), mistakes(name)); meant != "" {
			log.Warn("unknown flag ignored; is it one that is misspelt?", "flag", name, "nearest", meant)
			continue
		}
		log.Warn("unknown flag ignored", "flag", name)
	}
	o.await = func() []netip.Addr {
		return awaitAddress(cmd.Context(), log.Logger, interfaceAddresses, addressPatience)
	}
	config, err := o.resolve(cmd, args)
	if err != nil {
		return nil, nil, errors.Join(err, log.Close())
	}
	for _, warning := range config.Warnings {
		log.Warn(warning)
	}
	return config, log, nil
}

// runAgent runs the agent until a signal stops it.
func runAgent(ctx context.Context, config *Config, logger *Log, started time.Time, reopen chan os.Signal) error {
	signals := takeSignals(ctx, logger.Logger)
	defer signals.stop()
	a, err := New(Options{
		Config: config, Logger: logger.Logger, Log: logger, Started: started,
		Hasten: signals.hasten, Drain: signals.drain,
		EnvoyOutput: logger.envoyLine,
	})
	if err != nil {
		return err
	}
	defer a.reopenOn(reopen)()
	stopTelling := tellService(signals.ctx, a)
	err = a.Run(signals.ctx)
	stopTelling(err)
	var ended *EnvoyEndedError
	if errors.As(err, &ended) && ended.Exit.ExitCode() == 0 {
		logger.Info("Envoy ended by itself, without an error")
		return nil
	}
	return err
}

// unknownFlags are the flags of a command line that the set has no place for.
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

// flagNames are the flags of a set, as they are written.
func flagNames(set *pflag.FlagSet) []string {
	var names []string
	set.VisitAll(func(f *pflag.Flag) { names = append(names, "--"+f.Name) })
	return names
}

// interfaceAddresses are the machine's addresses but loopback and link-local ones; IPv4 first, as they are listed.
func interfaceAddresses() ([]netip.Addr, error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	var found []netip.Addr
	for _, a := range all {
		prefix, err := netip.ParsePrefix(a.String())
		if err == nil && prefix.Addr().IsGlobalUnicast() {
			found = append(found, prefix.Addr().Unmap())
		}
	}
	slices.SortStableFunc(found, func(a, b netip.Addr) int { return a.BitLen() - b.BitLen() })
	return found, nil
}

const (
	// addressPatience is how long a machine without an address is waited for: at its start the network may come later.
	addressPatience = 2 * time.Minute
	addressInterval = 100 * time.Millisecond
)

// awaitAddress looks until the machine has an address, or the time is over.
func awaitAddress(ctx context.Context, log *slog.Logger, look func() ([]netip.Addr, error), patience time.Duration) []netip.Addr {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	log.Warn("this machine has no address but loopback yet; waiting for one, unless INSTANCE_IP is set", "atMost", patience)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(addressInterval):
		}
		if found, err := look(); err == nil && len(found) > 0 {
			return found
		}
	}
}

// envoyCache is where the project's scripts put Envoys, or nothing where the user has no cache.
func envoyCache() string {
	dir, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "pilotfish", "envoy")
}
