package agent

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/pilotfish-mesh/pilotfish/agent/config"
	"github.com/pilotfish-mesh/pilotfish/agent/logging"
	"github.com/pilotfish-mesh/pilotfish/bootstrap"
	"github.com/pilotfish-mesh/pilotfish/dns"
	"github.com/pilotfish-mesh/pilotfish/internal/uds"
	"github.com/pilotfish-mesh/pilotfish/sds"
	"github.com/pilotfish-mesh/pilotfish/sts"
	"github.com/pilotfish-mesh/pilotfish/wasm"
	"github.com/pilotfish-mesh/pilotfish/xdsproxy"
)

// shutdownSlack is added to the planned duration of a shutdown to get the time limit after which the agent treats the
// shutdown as hung. The machine may be busy, or the agent may write a crash report.
const shutdownSlack = 20 * time.Second

// Options are the parameters of New.
type Options struct {
	Config *config.Config
	Logger *slog.Logger
	// Log is the log to which Logger writes. The agent changes its levels and reopens its files. If nil, both
	// operations are unavailable.
	Log *logging.Log
	// EnvoyOutput is called with each line that Envoy writes, after redaction of secrets. If nil, the lines are
	// dropped.
	EnvoyOutput func(line string)
	// Drain starts a drain of the proxy when it is closed. The proxy continues to serve until the agent is stopped.
	Drain <-chan struct{}
	// ShortenShutdown shortens a running shutdown when it is closed.
	ShortenShutdown <-chan struct{}
	// Started is the start time of the process, from which the startup duration metric is computed.
	Started time.Time
	// OnFirstReady, if set, is called when the agent is ready for the first time.
	OnFirstReady func()
}

// Agent is the agent of one proxy. New creates it. Run may be called once.
type Agent struct {
	Options
	bootstrap     bootstrap.Config
	bootstrapFile string // path of the bootstrap file
	metrics       *prometheus.Registry

	// servers are the components that serve Envoy. They stop after Envoy. envoy is nil if the agent runs no Envoy.
	servers []component
	envoy   *envoySupervisor
	control *controlServer // serves requests that are not available on TCP
	levels  *logging.LevelController
	relay   *xdsproxy.Relay
	// certificates serves Envoy's secrets.
	certificates *sds.Server
	// credential fetches tokens that are not stored in a file; nil if the token is in a file.
	credential sts.Fetcher
	tokens     *sts.Server   // nil if token exchange is disabled
	dns        *dns.Server   // nil if the DNS server is disabled
	wasm       *wasm.Modules // nil if Envoy fetches its Wasm modules

	requests     drainRequests
	envoyPIDs    envoyPIDs
	callerLookup sync.Mutex // held while the agent determines the client of a status port connection
	releaseLocks func()     // releases the directory locks
}

// New creates the agent's components, locks its directories, listens on the status port and writes the bootstrap. The
// errors of these steps are thus returned before any component runs. The caller must call Run, which releases these
// resources.
func New(o Options) (*Agent, error) {
	if err := o.Config.Envoy.User.CheckCapabilities(); err != nil {
		return nil, ConfigError{err}
	}
	unlock, err := lockConfigDir(o.Config)
	if err != nil {
		return nil, err
	}
	a, err := newAgent(o)
	if err != nil {
		unlock()
		return nil, err
	}
	a.releaseLocks = unlock
	return a, nil
}

func newAgent(o Options) (*Agent, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	a := &Agent{
		Options:   o,
		bootstrap: o.Config.BootstrapConfig(),
		metrics:   prometheus.NewRegistry(),
		requests:  newDrainRequests(),
	}
	if a.bootstrap.AgentSecret != "" {
		a.bootstrap.AgentSecret = uds.NewSecret()
	}
	// Without the prefix, the agent's metrics would have the names of the application's Go and process metrics, which
	// are merged into the same scrape.
	prometheus.WrapRegistererWithPrefix("istio_agent_", a.metrics).MustRegister(
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	a.control = newControlServer(o.Config, o.Logger)
	var err error
	if a.levels, err = a.newLogLevels(); err != nil {
		return nil, err
	}
	if err = makeAdminDirectory(o.Config); err != nil {
		return nil, ConfigError{err}
	}
	if a.bootstrapFile, err = writeBootstrap(o.Config, a.bootstrap); err != nil {
		return nil, err
	}
	if a.servers, err = a.makeComponents(); err != nil {
		if a.tokens != nil {
			err = errors.Join(err, a.tokens.Close())
		}
		if a.dns != nil {
			a.dns.Close()
		}
		return nil, err
	}
	return a, nil
}

// makeComponents creates all components and returns the components that serve Envoy, in start order. Envoy starts after
// them and stops before them.
func (a *Agent) makeComponents() ([]component, error) {
	var err error
	if a.credential, err = a.newCredential(); err != nil {
		return nil, err
	}
	certificates, err := a.newCertificates()
	if err != nil {
		return nil, err
	}
	a.certificates = certificates
	if a.dns, err = a.newDNSServer(); err != nil {
		return nil, err
	}
	if a.wasm, err = a.newWasmModules(); err != nil {
		return nil, err
	}
	relay, err := a.newRelay()
	if err != nil {
		return nil, err
	}
	if a.wasm != nil {
		a.wasm.ReportMissing(relay.ReportDegradation)
	}
	a.relay = relay
	a.handleXDS(relay)
	a.handleCheck()
	components := []component{
		{name: "certificates", run: certificates.Run, health: certificates.Condition, restart: true},
		{name: "xds", run: relay.Run, health: a.configurationCheck(relay), restart: true},
	}
	if a.tokens, err = a.newTokenServer(); err != nil {
		return nil, err
	}
	if a.tokens != nil {
		components = append(components, component{name: "tokens", run: a.tokens.Run, health: a.tokens.Condition})
	}
	if a.wasm != nil {
		components = append(components, component{name: "wasm", run: a.wasm.Run, restart: true})
	}
	if a.dns != nil {
		components = append(components, component{name: "dns", run: a.dns.Run, health: a.dns.Condition})
	}
	checked := components
	if !a.Config.Envoy.Disabled {
		if a.envoy, err = newEnvoySupervisor(a); err != nil {
			return nil, err
		}
		a.control.Handle(AdminPath+"/", a.envoy.adminHandler())
		checked = append(checked, a.envoy.component())
	} else {
		a.control.Handle("POST /upgrade", jsonHandler(a.refuseUpgrade))
	}
	server, err := a.newStatusServer(checked, certificates, relay)
	if err != nil {
		return nil, err
	}
	components = append(components, a.control.component(), component{name: "log levels", run: a.levels.Run, restart: true})
	if health := a.newHealthCheck(relay.ReportHealth); health != nil {
		components = append(components, health.component())
	}
	return append([]component{{name: "status", run: server.Run}}, components...), nil
}

// Run runs the components until ctx ends, /quitquitquit is called, Envoy exits, or a component fails permanently. It
// returns nil if ctx ended or /quitquitquit was called. If Envoy exited by itself, or did not stop cleanly, it returns
// an *EnvoyEndedError.
func (a *Agent) Run(ctx context.Context) error {
	defer a.releaseLocks()
	ctx, end := context.WithCancel(ctx)
	defer end()
	serving, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	servers, proxy := newComponentGroup(a.Logger), newComponentGroup(a.Logger)
	for _, p := range a.servers {
		servers.start(serving, p)
	}
	if a.envoy != nil {
		proxy.start(ctx, a.envoy.component())
		if a.Config.Shutdown.EndsEarly() {
			proxy.start(ctx, a.envoy.arrivalsComponent())
		}
	}
	servers.run("drain request", func() {
		select {
		case <-a.Drain:
			a.StartDrain("SIGUSR2")
		case <-serving.Done():
		}
	})

	var err error
	select {
	case <-ctx.Done():
	case <-a.requests.quit.done():
	case err = <-servers.failed:
	case err = <-proxy.failed:
	}
	a.requests.drain.set()
	end()
	// Twice the deadline, because an upgrade stops two Envoys.
	hung := proxy.waitStopped(2*a.Config.Shutdown.Deadline + shutdownSlack)
	if err == nil && a.envoy != nil {
		err = a.envoy.stopError()
	}
	stopServing()
	hung = errors.Join(hung, servers.waitStopped(shutdownSlack))
	return cmp.Or(err, hung)
}
