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
	"github.com/pilotfish-mesh/pilotfish/internal/backoff"
	"github.com/pilotfish-mesh/pilotfish/internal/health"
)

const (
	// takeOverTimeout is how long the agent waits until the previous agent releases the plugin's socket.
	takeOverTimeout = time.Minute
	// ownerTimeout is the timeout of the DaemonSet lookup when the agent exits. It must be shorter than the pod's
	// termination grace period.
	ownerTimeout = 5 * time.Second
)

// nodeAgent contains all components of the node agent.
type nodeAgent struct {
	settings   *settings
	api        *kube.Client
	token      *kube.LastingToken // the token in the plugin's kubeconfig
	installer  *install.Installer
	components []component // without the installer
	ownerFound atomic.Bool // waitForOwner has found the DaemonSet
	logger     *slog.Logger
}

// component is a part of the node agent that runs until its context ends.
type component struct {
	name string
	run  func(context.Context) error
}

// newNodeAgent creates the components, and opens the plugin's socket. It installs nothing yet.
func newNodeAgent(ctx context.Context, s *settings, logger *slog.Logger) (*nodeAgent, error) {
	api, err := kube.New(s.api)
	if err != nil {
		return nil, err
	}
	a := &nodeAgent{settings: s, api: api, logger: logger}
	var repairer *repair.Repairer
	cache := node.NewCache(node.CacheConfig{API: api, Node: s.node, Logger: logger, Changed: func(e kube.Event) { repairer.Changed(e) }})
	ready := func() health.Condition { return combinedHealth(a.installer.Health(), cache.Health()) }
	metrics := node.NewMetrics(cache, ready)
	a.token = kube.NewLastingToken(api, s.tokenFile(), s.tokenLife, nil, logger)
	if a.installer, err = newInstaller(s, a.token, metrics, logger); err != nil {
		return nil, err
	}
	events := node.NewEvents(node.EventsConfig{API: api, Node: s.node, Metrics: metrics, Logger: logger})
	if repairer, err = newRepairer(s, api, cache, metrics, events, logger); err != nil {
		return nil, err
	}
	probes, err := node.NewProbeServer(s.readyAddress, ready, logger)
	if err != nil {
		return nil, err
	}
	page, err := node.NewMetricsServer(net.JoinHostPort("", strconv.Itoa(int(s.monitoringPort))), metrics, logger)
	if err != nil {
		return nil, err
	}
	server, err := listenWithRetry(ctx, node.ServerConfig{
		RunDir: s.runDir, Pod: cache.Pod, Health: cache.Health, Metrics: metrics, OnResult: repairer.HandleResult, Logger: logger,
	})
	if err != nil {
		return nil, err
	}
	a.components = []component{
		{"plugin's socket", server.Run},
		{"pods", cache.Run},
		{"probes", probes.Run},
		{"metrics", page.Run},
		{"repair", repairer.Run},
		{"events", events.Run},
	}
	if s.notReadyTaint != "" {
		a.components = append(a.components, component{"taint", (&untainter{node: s.node, taint: s.notReadyTaint, api: api, ready: ready, logger: logger}).run})
	}
	return a, nil
}

// combinedHealth returns installed, the condition of the installer, if it is not OK, and otherwise pods, the condition
// of the pod cache.
func combinedHealth(installed, pods health.Condition) health.Condition {
	if !installed.OK {
		return installed
	}
	return pods
}

// listenWithRetry opens the plugin's socket. It retries until the previous agent releases it.
func listenWithRetry(ctx context.Context, c node.ServerConfig) (*node.Server, error) {
	ctx, cancel := context.WithTimeout(ctx, takeOverTimeout)
	defer cancel()
	for {
		server, err := node.NewServer(c)
		if err == nil {
			return server, nil
		}
		if !backoff.Sleep(ctx, 500*time.Millisecond) {
			return nil, err
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
		c.OnAttempt = func(result string) { metrics.Installs.WithLabelValues(result).Inc() }
		c.OnConflict = func(file string) { metrics.Conflicts.WithLabelValues(file).Inc() }
	}
	return install.New(c)
}

func newRepairer(s *settings, api *kube.Client, cache *node.Cache, m *node.Metrics, events *node.Events, logger *slog.Logger) (*repair.Repairer, error) {
	c := repair.Config{
		Mode: s.repairMode, LabelKey: s.labelKey, LabelValue: s.labelValue, Drifted: s.repairDrifted, Settings: s.capture(),
		Pods: cache.Pods, API: api, Redirection: repair.Kernel{Choice: s.choice, Logger: logger},
		Scan:        func() (repair.SandboxFinder, error) { return sandbox.Scan(s.proc, s.hostNetNS) },
		HistoryFile: filepath.Join(s.runDir, "repaired.json"), Every: s.checkEvery, Logger: logger,
		Callbacks: repair.Callbacks{
			Checked: func(state repair.State) { m.Checks.WithLabelValues(string(state)).Inc() },
			Counted: func(captured, drifted int) {
				m.Watched.Set(float64(captured))
				m.Drifted.Set(float64(drifted))
			},
			Acted: func(mode repair.Mode, result string) { m.Repairs.WithLabelValues(string(mode), result).Inc() },
		},
	}
	if s.podEvents {
		c.Callbacks.Event = events.Enqueue
	}
	return repair.New(c)
}

// run runs all components until ctx ends or one of them fails. It stops the installer first. The other components
// continue to serve the plugin until finish returns.
func (a *nodeAgent) run(ctx context.Context) error {
	defer a.api.Close()
	defer a.token.Close()
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	for _, p := range a.components {
		running.Go(func() {
			if err := p.run(serving); serving.Err() == nil {
				end(fmt.Errorf("%s: %w", p.name, err))
			}
		})
	}
	running.Go(func() { a.waitForOwner(serving) })
	_ = a.installer.Run(ctx)
	err := a.finish(ctx)
	stop()
	running.Wait()
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		err = errors.Join(cause, err)
	}
	return err
}

// waitForOwner polls until it has found the agent's DaemonSet. finish needs this to distinguish a deleted DaemonSet
// from a wrong --daemonset-name.
func (a *nodeAgent) waitForOwner(ctx context.Context) {
	s := a.settings
	if s.podNamespace == "" || s.daemonSet == "" {
		return
	}
	logged := ""
	for wait := time.Second; ; wait = min(2*wait, time.Minute) {
		gone, err := a.api.DaemonSetGone(ctx, s.podNamespace, s.daemonSet)
		if err == nil && !gone {
			a.ownerFound.Store(true)
			a.logger.Debug("found this agent's DaemonSet", "daemonset", s.daemonSet)
			return
		}
		if err == nil {
			err = fmt.Errorf("the DaemonSet %s/%s (pod-namespace, daemonset-name) does not exist", s.podNamespace, s.daemonSet)
		}
		if ctx.Err() == nil && logged != err.Error() {
			logged = err.Error()
			a.logger.Warn("the agent's DaemonSet was not found; if the agent exits before the DaemonSet is found, the plugin stays installed", "error", err)
		}
		if !backoff.Sleep(ctx, wait) {
			return
		}
	}
}

// finish uninstalls the plugin if the API server reports that the DaemonSet was deleted. In all other cases the plugin
// stays installed: new pods of the mesh then wait for the next agent, so that no pod starts without redirection.
func (a *nodeAgent) finish(ctx context.Context) error {
	s := a.settings
	if s.podNamespace == "" || s.daemonSet == "" {
		a.logger.Info("the plugin stays installed, because the agent's DaemonSet is not configured (pod-namespace, daemonset-name)")
		return nil
	}
	lookup, cancel := context.WithTimeout(context.WithoutCancel(ctx), ownerTimeout)
	defer cancel()
	gone, err := a.api.DaemonSetGone(lookup, s.podNamespace, s.daemonSet)
	switch {
	case err != nil:
		a.logger.Warn("cannot look up the agent's DaemonSet; the plugin stays installed, so that no pod starts without redirection",
			"error", err, "remedy", "to remove the plugin, run pilotfish-cni-install uninstall on the node")
		return nil
	case !gone:
		a.logger.Info("the plugin stays installed, because the agent's DaemonSet still exists", "daemonset", s.daemonSet)
		return nil
	}
	if !a.ownerFound.Load() {
		a.logger.Warn("the plugin stays installed, because the agent never found its DaemonSet while it ran",
			"namespace", s.podNamespace, "daemonset", s.daemonSet, "remedy", "set daemonset-name; to remove the plugin, run pilotfish-cni-install uninstall on the node")
		return nil
	}
	a.logger.Info("the agent's DaemonSet is deleted; uninstalling the plugin", "daemonset", s.daemonSet)
	return a.installer.Uninstall()
}
