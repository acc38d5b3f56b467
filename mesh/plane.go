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
)

// plane is the embedded control plane, which can be stopped and started while the mesh runs.
type plane struct {
	cfg    controlplane.Config
	events *stream

	life sync.Mutex // one start or stop at a time

	mu      sync.Mutex
	server  *controlplane.Server
	last    *controlplane.Server // that was the last to serve
	cancel  context.CancelFunc
	done    chan struct{}
	since   time.Time
	reason  string
	wanted  bool // it is to run: when it ends by itself, it is started again
	known   map[config.Problem]bool
	current []config.Problem
}

// problemInterval is how often the configuration's problems are looked at, to tell of them as they come.
const problemInterval = 200 * time.Millisecond

func newPlane(cfg controlplane.Config, events *stream) *plane {
	cfg.Logger = slog.New(exceptProblems{slog.NewTextHandler(&lines{emit: func(line string) {
		events.publish(Event{Kind: Log, Origin: OriginControlPlane, Line: line})
	}}, &slog.HandlerOptions{Level: slog.LevelInfo})})
	return &plane{cfg: cfg, events: events, known: map[config.Problem]bool{}}
}

// exceptProblems drops what is logged of the configuration's problems: they are events of their own.
type exceptProblems struct{ slog.Handler }

func (h exceptProblems) Handle(ctx context.Context, r slog.Record) error {
	told := false
	r.Attrs(func(a slog.Attr) bool {
		told = a.Key == config.ProblemAttr
		return !told
	})
	if told {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

func (h exceptProblems) WithAttrs(attrs []slog.Attr) slog.Handler {
	return exceptProblems{h.Handler.WithAttrs(attrs)}
}

func (h exceptProblems) WithGroup(name string) slog.Handler {
	return exceptProblems{h.Handler.WithGroup(name)}
}

// start opens the control plane's ports and serves; it returns once clients are served.
func (p *plane) start(ctx context.Context) error {
	p.life.Lock()
	defer p.life.Unlock()
	p.setWanted(true)
	return p.startLocked(ctx)
}

func (p *plane) setWanted(wanted bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wanted = wanted
}

func (p *plane) startLocked(ctx context.Context) error {
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
	p.last = server
	p.mu.Unlock()
	p.events.publish(Event{Kind: ControlPlaneUp, Origin: OriginControlPlane, Message: p.cfg.Address})
	p.report(server)
	return nil
}

// proxyConfig is what ProxyConfigs say of a workload, also while the control plane is stopped: as it was then.
func (p *plane) proxyConfig(namespace string, labels map[string]string) *networkingbeta.ProxyConfig {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.last == nil {
		return nil
	}
	return p.last.ProxyConfig(namespace, labels)
}

// bootstrap is what EnvoyFilters say of a workload's bootstrap, likewise.
func (p *plane) bootstrap(w *Workload) ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.last == nil {
		return nil, nil
	}
	return p.last.Bootstrap(w.Namespace, w.Labels, w.Type == Gateway)
}

func (p *plane) serve(ctx context.Context, server *controlplane.Server) {
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

func (p *plane) awaitHealth(ctx context.Context, server *controlplane.Server, done <-chan struct{}) error {
	for {
		if ok, _ := server.Health(); ok {
			return nil
		}
		select {
		case <-done:
			p.mu.Lock()
			defer p.mu.Unlock()
			return fmt.Errorf("the control plane ended at its start: %s", p.reason)
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// stop ends the control plane, and waits for its end.
func (p *plane) stop() error {
	p.life.Lock()
	defer p.life.Unlock()
	p.setWanted(false)
	if !p.running() {
		return errors.New("the control plane does not run")
	}
	p.mu.Lock()
	cancel, done := p.cancel, p.done
	p.mu.Unlock()
	cancel()
	<-done
	return nil
}

// keepUp starts the control plane again when it ended by itself, after longer and longer pauses, until ctx ends.
func (p *plane) keepUp(ctx context.Context) {
	pause := firstPause
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		p.life.Lock()
		p.mu.Lock()
		lost := p.wanted && p.server == nil
		p.mu.Unlock()
		var err error
		if lost {
			err = p.startLocked(ctx)
		}
		p.life.Unlock()
		switch {
		case err != nil && ctx.Err() == nil:
			p.events.publish(Event{Kind: ControlPlaneDown, Origin: OriginControlPlane, Message: err.Error()})
			pause = min(2*pause, longestPause)
		case err == nil:
			pause = firstPause
		}
	}
}

func (p *plane) running() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.server != nil
}

func (p *plane) followProblems(ended <-chan struct{}, server *controlplane.Server) {
	ticker := time.NewTicker(problemInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ended:
			return
		case <-ticker.C:
			p.report(server)
		}
	}
}

// report tells of problems that are new, and of those that are gone.
func (p *plane) report(server *controlplane.Server) {
	problems := server.Status().Problems
	p.mu.Lock()
	defer p.mu.Unlock()
	now := make(map[config.Problem]bool, len(problems))
	for _, problem := range problems {
		if !now[problem] && !p.known[problem] {
			p.events.publish(Event{Kind: ConfigProblem, Origin: OriginControlPlane, Problem: &problem})
		}
		now[problem] = true
	}
	for _, problem := range p.current {
		if !now[problem] && p.known[problem] {
			p.events.publish(Event{Kind: ProblemSolved, Origin: OriginControlPlane, Problem: &problem})
		}
	}
	p.known, p.current = now, problems
}

// status is the control plane's part of the mesh's status, and what it knows of its clients.
func (p *plane) status() (ControlPlaneStatus, controlplane.Status) {
	p.mu.Lock()
	server := p.server
	s := ControlPlaneStatus{
		Running: server != nil, Since: p.since, Reason: p.reason, Address: fmt.Sprintf("%s:%d", p.cfg.Address, securePort),
		ConfigDir: p.cfg.ConfigDirs, Problems: append([]config.Problem{}, p.current...),
	}
	p.mu.Unlock()
	if server == nil {
		return s, controlplane.Status{}
	}
	// It may serve clients and still have something to say: that the configuration cannot be read any more.
	_, s.Reason = server.Health()
	full := server.Status()
	s.Problems = append([]config.Problem{}, full.Problems...)
	return s, full
}
