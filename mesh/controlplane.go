package mesh

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	networkingbeta "istio.io/api/networking/v1beta1"

	"github.com/pilotfish-mesh/pilotfish/controlplane"
	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/internal/backoff"
	"github.com/pilotfish-mesh/pilotfish/mesh/topology"
)

// controlPlane is the embedded control plane, which can be stopped and started while the mesh runs.
type controlPlane struct {
	cfg    controlplane.Config
	events *eventStream

	lifecycleMu sync.Mutex // held while the control plane is started or stopped

	mu          sync.Mutex
	server      *controlplane.Server
	lastServing *controlplane.Server // the most recent server that became healthy
	cancel      context.CancelFunc
	done        chan struct{}
	since       time.Time
	reason      string
	wanted      bool // the control plane should run; if it exits, it is restarted
	reported    map[config.Problem]bool
	current     []config.Problem
}

// problemPollInterval is the interval at which the problems of the configuration are compared with those that were
// already reported.
const problemPollInterval = 200 * time.Millisecond

func newControlPlane(cfg controlplane.Config, events *eventStream) *controlPlane {
	cfg.Logger = slog.New(problemFilter{slog.NewTextHandler(&lineWriter{emit: func(line string) {
		events.publish(Event{Kind: Log, Origin: OriginControlPlane, Line: line})
	}}, &slog.HandlerOptions{Level: slog.LevelInfo})})
	return &controlPlane{cfg: cfg, events: events, reported: map[config.Problem]bool{}}
}

// problemFilter drops log records about problems of the configuration, because events report these problems.
type problemFilter struct{ slog.Handler }

func (h problemFilter) Handle(ctx context.Context, r slog.Record) error {
	isProblem := false
	r.Attrs(func(a slog.Attr) bool {
		isProblem = a.Key == config.ProblemAttr
		return !isProblem
	})
	if isProblem {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

func (h problemFilter) WithAttrs(attrs []slog.Attr) slog.Handler {
	return problemFilter{h.Handler.WithAttrs(attrs)}
}

func (h problemFilter) WithGroup(name string) slog.Handler {
	return problemFilter{h.Handler.WithGroup(name)}
}

// start opens the control plane's ports. It returns when the control plane serves clients.
func (p *controlPlane) start(ctx context.Context) error {
	p.lifecycleMu.Lock()
	defer p.lifecycleMu.Unlock()
	p.setWanted(true)
	return p.startLocked(ctx)
}

func (p *controlPlane) setWanted(wanted bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wanted = wanted
}

func (p *controlPlane) startLocked(ctx context.Context) error {
	if p.running() {
		return nil
	}
	server, err := controlplane.New(p.cfg)
	if err != nil {
		return fmt.Errorf("starting the control plane: %w", err)
	}
	serving, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	p.mu.Lock()
	p.server, p.cancel, p.done, p.since, p.reason = server, cancel, done, time.Now(), ""
	p.mu.Unlock()
	go func() {
		defer close(done)
		p.serve(serving, server)
	}()
	if err := p.awaitHealth(ctx, server, done); err != nil {
		cancel()
		<-done
		return err
	}
	p.mu.Lock()
	p.lastServing = server
	p.mu.Unlock()
	p.events.publish(Event{Kind: ControlPlaneUp, Origin: OriginControlPlane, Message: p.cfg.Address})
	p.reportProblems(server)
	return nil
}

// proxyConfig returns the merged ProxyConfigs of a workload with these labels. While the control plane is stopped, it
// uses the server that served most recently. It returns nil if none has served yet.
func (p *controlPlane) proxyConfig(namespace string, labels map[string]string) *networkingbeta.ProxyConfig {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lastServing == nil {
		return nil
	}
	return p.lastServing.ProxyConfig(namespace, labels)
}

// bootstrap returns the patch that EnvoyFilters specify for the workload's bootstrap. While the control plane is
// stopped, it uses the server that served most recently. It returns nil if none has served yet.
func (p *controlPlane) bootstrap(w *topology.Workload) ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lastServing == nil {
		return nil, nil
	}
	return p.lastServing.Bootstrap(w.Namespace, w.Labels, w.Type == topology.Gateway)
}

func (p *controlPlane) serve(ctx context.Context, server *controlplane.Server) {
	ended := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { p.followProblems(ended, server) })
	err := server.Run(ctx)
	close(ended)
	wg.Wait()
	reason := "stopped"
	if err != nil {
		reason = err.Error()
	}
	p.mu.Lock()
	p.server, p.since, p.reason = nil, time.Now(), reason
	p.mu.Unlock()
	p.events.publish(Event{Kind: ControlPlaneDown, Origin: OriginControlPlane, Message: reason})
}

func (p *controlPlane) awaitHealth(ctx context.Context, server *controlplane.Server, done <-chan struct{}) error {
	for {
		if ok, _ := server.Health(); ok {
			return nil
		}
		select {
		case <-done:
			p.mu.Lock()
			defer p.mu.Unlock()
			return fmt.Errorf("the control plane exited before it was ready: %s", p.reason)
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// stop stops the control plane, and waits until it has ended.
func (p *controlPlane) stop() error {
	p.lifecycleMu.Lock()
	defer p.lifecycleMu.Unlock()
	p.setWanted(false)
	if !p.running() {
		return errors.New("the control plane is not running")
	}
	p.mu.Lock()
	cancel, done := p.cancel, p.done
	p.mu.Unlock()
	cancel()
	<-done
	return nil
}

// supervise restarts the control plane with a growing backoff when it ends unexpectedly, until ctx ends.
func (p *controlPlane) supervise(ctx context.Context) {
	retry := backoff.Backoff{Min: minPause, Max: maxPause}
	pause := minPause
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		p.lifecycleMu.Lock()
		p.mu.Lock()
		lost := p.wanted && p.server == nil
		p.mu.Unlock()
		var err error
		if lost {
			err = p.startLocked(ctx)
		}
		p.lifecycleMu.Unlock()
		switch {
		case err != nil && ctx.Err() == nil:
			p.events.publish(Event{Kind: ControlPlaneDown, Origin: OriginControlPlane, Message: err.Error()})
			pause = retry.Next()
		case err == nil:
			pause = minPause
			retry.Reset()
		}
	}
}

func (p *controlPlane) running() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.server != nil
}

func (p *controlPlane) followProblems(ended <-chan struct{}, server *controlplane.Server) {
	ticker := time.NewTicker(problemPollInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ended:
			return
		case <-ticker.C:
			p.reportProblems(server)
		}
	}
}

// reportProblems publishes an event for each new problem and for each problem that no longer exists.
func (p *controlPlane) reportProblems(server *controlplane.Server) {
	problems := server.Status().Problems
	p.mu.Lock()
	defer p.mu.Unlock()
	now := make(map[config.Problem]bool, len(problems))
	for _, problem := range problems {
		if !now[problem] && !p.reported[problem] {
			p.events.publish(Event{Kind: ConfigProblem, Origin: OriginControlPlane, Problem: &problem})
		}
		now[problem] = true
	}
	for _, problem := range p.current {
		if !now[problem] && p.reported[problem] {
			p.events.publish(Event{Kind: ProblemSolved, Origin: OriginControlPlane, Problem: &problem})
		}
	}
	p.reported, p.current = now, problems
}

// status returns the state of the control plane, and the server's own report with its clients. The report is empty
// while the control plane is stopped.
func (p *controlPlane) status() (ControlPlaneStatus, controlplane.Status) {
	p.mu.Lock()
	server := p.server
	s := ControlPlaneStatus{
		Running: server != nil, Since: p.since, Reason: p.reason, Address: fmt.Sprintf("%s:%d", p.cfg.Address, topology.SecurePort), Monitoring: fmt.Sprintf("%s:%d", p.cfg.HostAddress, topology.MonitoringPort),
		ConfigDir: p.cfg.ConfigDirs, Problems: append([]config.Problem{}, p.current...),
	}
	p.mu.Unlock()
	if server == nil {
		return s, controlplane.Status{}
	}
	// A running control plane may also report a reason, for example that it cannot read the configuration any more.
	_, s.Reason = server.Health()
	full := server.Status()
	s.Problems = append([]config.Problem{}, full.Problems...)
	return s, full
}
