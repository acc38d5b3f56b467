package agent

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/pilotfish-mesh/pilotfish/bootstrap"
	"github.com/pilotfish-mesh/pilotfish/dns"
	"github.com/pilotfish-mesh/pilotfish/sds"
	"github.com/pilotfish-mesh/pilotfish/sts"
	"github.com/pilotfish-mesh/pilotfish/wasm"
	"github.com/pilotfish-mesh/pilotfish/xdsproxy"
)

// istioVersion is the release of Istio whose agent this one behaves like; control planes decide by it what a proxy
// understands.
const istioVersion = "1.31.0"

// endSlack is how much longer than planned an end may take, on a busy machine or with a report to write, before it counts as
// one that hangs.
const endSlack = 20 * time.Second

// Options are what an Agent needs.
type Options struct {
	Config *Config
	Logger *slog.Logger
	// Log is what is behind the logger, so that its levels can be changed and its files opened again; nil where that is
	// not offered.
	Log *Log
	// EnvoyOutput gets each line that Envoy writes, without secrets; nil drops them.
	EnvoyOutput func(line string)
	// Drain, when closed, has the proxy drain, and go on until it is told to end.
	Drain <-chan struct{}
	// Hasten, when closed, cuts a shutdown short.
	Hasten <-chan struct{}
	// Started is when the process began, for the metric of how long it took to become ready.
	Started time.Time
}

// Agent is one proxy's agent. It is made by New and run once.
type Agent struct {
	Options
	bootstrap bootstrap.Config
	file      string // of the bootstrap
	metrics   *prometheus.Registry

	// servers serve Envoy, and outlive it; envoy is nil when the agent was told to run none.
	servers []part
	envoy   *envoyPart
	control *control // takes the orders that are not offered on TCP
	levels  *logControl
	relay   *xdsproxy.Relay
	// certificates is what serves Envoy's secrets.
	certificates *sds.Server
	// credential gives tokens that are in no file; nil when they are in one.
	credential sts.Fetcher
	tokens     *sts.Server   // nil when none are exchanged
	names      *dns.Server   // nil when no DNS questions are answered
	modules    *wasm.Modules // nil when Envoy fetches its modules itself

	orders  orders
	family  family
	settled settled
	leave   func() // gives up the directories
}

// New makes the agent's parts, takes its directories and the status port and writes the bootstrap, so that what cannot work
// is known before anything runs. An agent that was made has to be run, or these stay taken.
func New(o Options) (*Agent, error) {
	if err := o.Config.Envoy.User.Possible(); err != nil {
		return nil, usageError{err}
	}
	leave, err := occupy(o.Config)
	if err != nil {
		return nil, err
	}
	a, err := newAgent(o)
	if err != nil {
		leave()
		return nil, err
	}
	a.leave = leave
	return a, nil
}

func newAgent(o Options) (*Agent, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	a := &Agent{
		Options:   o,
		bootstrap: o.Config.bootstrap(istioVersion),
		metrics:   prometheus.NewRegistry(),
		orders:    newOrders(),
	}
	// Without the prefix they would be taken for the application's, whose metrics are joined to these.
	prometheus.WrapRegistererWithPrefix("istio_agent_", a.metrics).MustRegister(
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	a.control = newControl(o.Config, o.Logger)
	var err error
	if a.levels, err = a.newLevels(); err != nil {
		return nil, err
	}
	if a.file, err = writeBootstrap(o.Config, a.bootstrap); err != nil {
		return nil, err
	}
	if a.servers, err = a.makeParts(); err != nil {
		if a.tokens != nil {
			err = errors.Join(err, a.tokens.Close())
		}
		if a.names != nil {
			a.names.Close()
		}
		return nil, err
	}
	return a, nil
}

// makeParts makes all parts, and lists those that serve Envoy in the order in which they start. Envoy comes after them,
// and is stopped before them.
func (a *Agent) makeParts() ([]part, error) {
	var err error
	if a.credential, err = a.newCredential(); err != nil {
		return nil, err
	}
	certificates, err := a.newCertificates()
	if err != nil {
		return nil, err
	}
	a.certificates = certificates
	if a.names, err = a.newNames(); err != nil {
		return nil, err
	}
	if a.modules, err = a.newModules(); err != nil {
		return nil, err
	}
	relay, err := a.newRelay()
	if err != nil {
		return nil, err
	}
	a.relay = relay
	a.offerXDS(relay)
	parts := []part{
		{name: "certificates", run: certificates.Run, health: certificates.Condition, restart: true},
		{name: "xds", run: relay.Run, health: a.configuration(relay), restart: true},
	}
	if a.tokens, err = a.newTokens(); err != nil {
		return nil, err
	}
	if a.tokens != nil {
		parts = append(parts, part{name: "tokens", run: a.tokens.Run, health: a.tokens.Condition})
	}
	if a.modules != nil {
		parts = append(parts, part{name: "wasm", run: a.modules.Run, restart: true})
	}
	if a.names != nil {
		parts = append(parts, part{name: "dns", run: a.names.Run, health: a.names.Condition})
	}
	checked := parts
	if !a.Config.Envoy.Disabled {
		if a.envoy, err = newEnvoyPart(a); err != nil {
			return nil, err
		}
		checked = append(checked, a.envoy.part())
	} else {
		a.control.Handle("POST /upgrade", answer(a.noUpgrade))
	}
	server, err := a.newStatus(checked, certificates, relay)
	if err != nil {
		return nil, err
	}
	a.settled.giveUp = server.Rest
	parts = append(parts, a.control.part(), a.levels.part())
	if health := a.newHealthCheck(relay.ReportHealth); health != nil {
		parts = append(parts, health.part())
	}
	return append([]part{{name: "status", run: server.Run}}, parts...), nil
}

// Run keeps the parts running until the context ends, /quitquitquit is called, Envoy ends, or a part fails for good.
// Ended by the context or by /quitquitquit it returns nil; ended by Envoy, or when Envoy did not end cleanly, an
// *EnvoyEndedError.
func (a *Agent) Run(ctx context.Context) error {
	defer a.leave()
	ctx, end := context.WithCancel(ctx)
	defer end()
	serving, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	servers, proxy := newGroup(a.Logger), newGroup(a.Logger)
	for _, p := range a.servers {
		servers.start(serving, p)
	}
	if a.envoy != nil {
		proxy.start(ctx, a.envoy.part())
	}
	servers.run("settling", func() { a.settled.settle(serving) })
	servers.run("order to drain", func() {
		select {
		case <-a.Drain:
			a.drainAndStay("SIGUSR2")
		case <-serving.Done():
		}
	})

	var err error
	select {
	case <-ctx.Done():
	case <-a.orders.quit.done():
	case err = <-servers.failed:
	case err = <-proxy.failed:
	}
	a.orders.drain.give()
	end()
	hung := proxy.end(2*a.Config.Shutdown.Deadline + endSlack) // twice when an upgrade changes whom there is to end
	if err == nil && a.envoy != nil {
		err = a.envoy.verdictOfEnd()
	}
	stopServing()
	hung = errors.Join(hung, servers.end(endSlack))
	return cmp.Or(err, hung)
}
