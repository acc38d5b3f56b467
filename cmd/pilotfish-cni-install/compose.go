package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pilotfish-mesh/pilotfish/cni/agentapi"
	"github.com/pilotfish-mesh/pilotfish/cni/install"
	"github.com/pilotfish-mesh/pilotfish/cni/kube"
	"github.com/pilotfish-mesh/pilotfish/cni/node"
	"github.com/pilotfish-mesh/pilotfish/cni/repair"
	"github.com/pilotfish-mesh/pilotfish/cni/sandbox"
	"github.com/pilotfish-mesh/pilotfish/internal/health"
)

const (
	// takeOver is how long the agent before this one may take to end and leave the socket.
	takeOver = time.Minute
	// askOwner bounds the question whether the daemon set is gone, in the time that a pod has to end.
	askOwner = 5 * time.Second
)

// nodeAgent is all parts of the node agent.
type nodeAgent struct {
	settings  *settings
	api       *kube.Client
	token     *kube.LastingToken // the plugin's
	installer *install.Installer
	parts     []part      // but the installer
	seen      atomic.Bool // the daemon set was there
	logger    *slog.Logger
}

// part runs until its context ends.
type part struct {
	name string
	run  func(context.Context) error
}

// compose makes the parts. The plugin is served from here on; nothing is installed yet.
func compose(ctx context.Context, s *settings, logger *slog.Logger) (*nodeAgent, error) {
	api, err := kube.New(s.api)
	if err != nil {
		return nil, err
	}
	a := &nodeAgent{settings: s, api: api, logger: logger}
	var repairer *repair.Repairer
	cache := node.NewCache(node.CacheConfig{API: api, Node: s.node, Logger: logger, Changed: func(e kube.Event) { repairer.Changed(e) }})
	ready := func() health.Condition { return both(a.installer.Health(), cache.Health()) }
	metrics := node.NewMetrics(cache, ready)
	a.token = kube.NewLastingToken(api, s.tokenFile(), s.tokenLife, nil, logger)
	if a.installer, err = newInstaller(s, a.token, metrics, logger); err != nil {
		return nil, err
	}
	events := node.NewEvents(node.EventsConfig{API: api, Node: s.node, Metrics: metrics, Logger: logger})
	if repairer, err = newRepairer(s, api, cache, metrics, events, logger); err != nil {
		return nil, err
	}
	probes, err := node.NewProbes(s.readyAddress, ready, logger)
	if err != nil {
		return nil, err
	}
	page, err := node.NewMetricsPage(net.JoinHostPort("", strconv.Itoa(int(s.monitoringPort))), metrics, logger)
	if err != nil {
		return nil, err
	}
	server, err := listen(ctx, node.ServerConfig{
		RunDir: s.runDir, Pod: cache.Pod, Health: cache.Health, Metrics: metrics, Told: repairer.Told, Logger: logger,
	})
	if err != nil {
		return nil, err
	}
	a.parts = []part{
		{"plugin's socket", server.Run},
		{"pods", cache.Run},
		{"probes", probes.Run},
		{"metrics", page.Run},
		{"repair", repairer.Run},
		{"events", events.Run},
	}
	if s.notReadyTaint != "" {
		a.parts = append(a.parts, part{"taint", (&untainter{node: s.node, taint: s.notReadyTaint, api: api, ready: ready, logger: logger}).run})
	}
	return a, nil
}

// both joins what keeps the agent from being ready.
func both(installed, pods health.Condition) health.Condition {
	if !installed.OK {
		return installed
	}
	return pods
}

// listen waits for an agent before this one to leave the socket.
func listen(ctx context.Context, c node.ServerConfig) (*node.Server, error) {
	ctx, cancel := context.WithTimeout(ctx, takeOver)
	defer cancel()
	for {
		server, err := node.NewServer(c)
		if err == nil {
			return server, nil
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(500 * time.Millisecond):
		}
	}
}

func newInstaller(s *settings, token *kube.LastingToken, metrics *node.Metrics, logger *slog.Logger) (*install.Installer, error) {
	c := install.Config{
		Binary: filepath.Join(s.binaryDir, install.PluginType), Tombstone: filepath.Join(s.binaryDir, "pilotfish-cni-tombstone"),
		BinDirs: s.binDirs, ConfDir: s.confDir, ConfName: s.confName, Mode: s.mode, Plugin: s.plugin(),
		Kubeconfig: s.kubeconfigPath(), KubeconfigMode: fs.FileMode(s.kubeconfigMode), Server: s.api.Server,
		TokenFile: s.tokenFile(), CAFile: s.caFile(), SkipTLSVerify: s.skipTLSVerify,
		Results: s.resultsDir, Notes: filepath.Join(s.runDir, agentapi.AttachmentsDir), Logger: logger,
	}
	if token != nil {
		c.Token, c.Renewed = token.Token, token.Renewed()
	}
	if metrics != nil {
		c.Tell = func(result string) { metrics.Installs.WithLabelValues(result).Inc() }
		c.Fought = func(file string) { metrics.Fights.WithLabelValues(file).Inc() }
	}
	return install.New(c)
}

func newRepairer(s *settings, api *kube.Client, cache *node.Cache, m *node.Metrics, events *node.Events, logger *slog.Logger) (*repair.Repairer, error) {
	c := repair.Config{
		Mode: s.repairMode, LabelKey: s.labelKey, LabelValue: s.labelValue, Drifted: s.repairDrifted, Settings: s.capture(),
		Pods: cache.Pods, API: api, Redirection: repair.Kernel{Choice: s.choice, Logger: logger},
		Scan:   func() (repair.Processes, error) { return sandbox.Scan(s.proc, s.hostNetNS) },
		Memory: filepath.Join(s.runDir, "repaired.json"), Every: s.checkEvery, Logger: logger,
		Tell: repair.Tell{
			Checked: func(state repair.State) { m.Checks.WithLabelValues(string(state)).Inc() },
			Standing: func(captured, drifted int) {
				m.Watched.Set(float64(captured))
				m.Drifted.Set(float64(drifted))
			},
			Acted: func(mode repair.Mode, result string) { m.Repairs.WithLabelValues(string(mode), result).Inc() },
		},
	}
	if s.podEvents {
		c.Tell.Event = events.Tell
	}
	return repair.New(c)
}

// run runs all parts until the context ends or one fails. The installer ends first and the others go on serving the plugin
// until it is decided whether it is uninstalled.
func (a *nodeAgent) run(ctx context.Context) error {
	defer a.api.Close()
	defer a.token.Close()
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	for _, p := range a.parts {
		running.Go(func() {
			if err := p.run(serving); serving.Err() == nil {
				end(fmt.Errorf("%s: %w", p.name, err))
			}
		})
	}
	running.Go(func() { a.seeOwner(serving) })
	_ = a.installer.Run(ctx)
	err := a.leave(ctx)
	stop()
	running.Wait()
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		err = errors.Join(cause, err)
	}
	return err
}

// seeOwner looks for the daemon set until it was there once. One that never was has not been deleted: its name is wrong.
func (a *nodeAgent) seeOwner(ctx context.Context) {
	s := a.settings
	if s.podNamespace == "" || s.daemonSet == "" {
		return
	}
	told := ""
	for wait := time.Second; ; wait = min(2*wait, time.Minute) {
		gone, err := a.api.DaemonSetGone(ctx, s.podNamespace, s.daemonSet)
		if err == nil && !gone {
			a.seen.Store(true)
			a.logger.Debug("the daemon set of this agent is seen", "daemonset", s.daemonSet)
			return
		}
		if err == nil {
			err = fmt.Errorf("there is no daemon set %s/%s (pod-namespace, daemonset-name)", s.podNamespace, s.daemonSet)
		}
		if ctx.Err() == nil && told != err.Error() {
			told = err.Error()
			a.logger.Warn("this agent's daemon set is not seen: until it is, the plugin stays installed when the agent ends", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// leave uninstalls the plugin when nobody comes after this agent, which the API server knows: its daemon set is gone. When
// it is only replaced, or that cannot be known, everything stays: until the next agent serves the plugin new pods of the
// mesh wait, and none starts unprotected.
func (a *nodeAgent) leave(ctx context.Context) error {
	s := a.settings
	if s.podNamespace == "" || s.daemonSet == "" {
		a.logger.Info("the plugin stays installed, as this agent does not know its daemon set (pod-namespace, daemonset-name)")
		return nil
	}
	asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), askOwner)
	defer cancel()
	gone, err := a.api.DaemonSetGone(asking, s.podNamespace, s.daemonSet)
	switch {
	case err != nil:
		a.logger.Warn("whether another agent follows is not known, so the plugin stays installed and keeps unprotected pods from starting",
			"error", err, "remedy", "if it is to go, run pilotfish-cni-install uninstall on the node")
		return nil
	case !gone:
		a.logger.Info("the plugin stays installed: the daemon set goes on, with another agent", "daemonset", s.daemonSet)
		return nil
	}
	if !a.seen.Load() {
		a.logger.Warn("the plugin stays installed: the API server knows no such daemon set, and never did while this agent ran",
			"namespace", s.podNamespace, "daemonset", s.daemonSet, "remedy", "set daemonset-name; to take the plugin away run pilotfish-cni-install uninstall on the node")
		return nil
	}
	a.logger.Info("the daemon set is deleted: the plugin is uninstalled", "daemonset", s.daemonSet)
	return a.installer.Uninstall()
}
