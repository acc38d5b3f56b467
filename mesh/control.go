package mesh

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/pilotfish-mesh/pilotfish/controlplane"
	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

func (m *Mesh) startControlPlane(ctx context.Context) error {
	p := newPlane(controlplane.Config{
		ConfigDirs: m.cfg.Topology.Config,
		Stores:     []config.Store{m.registry},
		StateDir:   m.stateDir(),

		StartsProxies: true,

		Address: m.placement.ControlPlane().String(),
		Listen:  m.placement.Listen,

		VirtualAddresses: m.virtualAddresses(),
		Mesh:             m.cfg.Topology.Mesh,
		MeshConfigFile:   m.cfg.Topology.MeshFile,
		MeshProblems:     m.cfg.Topology.MeshProblems,
		TrustDomain:      m.cfg.Topology.TrustDomain,
	}, m.events)
	if err := p.start(ctx); err != nil {
		return err
	}
	m.onEnd(func() { _ = p.stop() })
	m.mu.Lock()
	m.plane = p
	m.mu.Unlock()
	return nil
}

// virtualServices are addresses that nobody has: of the class that was never given out.
var virtualServices = netip.PrefixFrom(netip.AddrFrom4([4]byte{240, 0, 0, 0}), 5)

// virtualAddresses are for services, where connections are told apart by where they go.
func (m *Mesh) virtualAddresses() netip.Prefix {
	if m.placement.Captured() {
		return virtualServices
	}
	return netip.Prefix{}
}

// openControlSocket lets other commands of this user ask and order: `status`, `down`.
func (m *Mesh) openControlSocket(context.Context) error {
	path := filepath.Join(m.runtime.path, socketFile)
	l, err := net.Listen("unix", path)
	if err == nil {
		err = os.Chmod(path, 0o600)
	}
	if err != nil {
		return fmt.Errorf("opening the control socket: %w", withRemedy(err))
	}
	server := &http.Server{Handler: m.controlHandler(), ReadHeaderTimeout: 5 * time.Second}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(l)
	}()
	m.onEnd(func() {
		_ = server.Close()
		<-done
	})
	return nil
}

// controlHandler is the control socket's API: JSON over HTTP.
func (m *Mesh) controlHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, r *http.Request) { answer(w, m.Status(r.Context())) })
	mux.HandleFunc("GET /events", m.serveEvents)
	mux.HandleFunc("POST /stop", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, struct{}{})
		_ = http.NewResponseController(w).Flush() // the socket closes with the mesh
		m.Stop("asked by `pilotfish down`")
	})
	mux.HandleFunc("POST /control-plane/stop", order(m.StopControlPlane))
	mux.HandleFunc("POST /control-plane/start", order(m.StartControlPlane))
	mux.HandleFunc("POST /workloads/{name}/restart", func(w http.ResponseWriter, r *http.Request) {
		order(func(ctx context.Context) error { return m.Restart(ctx, r.PathValue("name")) })(w, r)
	})
	mux.HandleFunc("/debug/", m.serveDebug)
	mux.HandleFunc("/workloads/{name}/envoy/{page...}", m.serveWorkload(envoyPages, (*Instance).AdminAddress))
	mux.HandleFunc("GET /workloads/{name}/agent/{page...}", m.serveWorkload(agentPages, (*Instance).StatusAddress))
	mux.HandleFunc("GET /workloads/{name}/inside", func(w http.ResponseWriter, r *http.Request) {
		in, err := m.inside(r.PathValue("name"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusConflict)
			return
		}
		answer(w, in)
	})
	return mux
}

// order makes a handler of what gives an error or nothing.
func order(do func(context.Context) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := do(r.Context()); err != nil {
			http.Error(w, err.Error(), http.StatusConflict)
			return
		}
		answer(w, struct{}{})
	}
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v)
}

// serveEvents streams what happens from now on, one JSON object a line.
func (m *Mesh) serveEvents(w http.ResponseWriter, r *http.Request) {
	sub := m.Events()
	defer sub.Close()
	control := http.NewResponseController(w)
	w.Header().Set("Content-Type", "application/jsonl")
	if control.Flush() != nil {
		return
	}
	out := json.NewEncoder(w)
	for {
		events, ok := sub.Next(r.Context().Done())
		if !ok {
			return
		}
		for _, e := range events {
			if out.Encode(e) != nil {
				return
			}
		}
		if control.Flush() != nil {
			return
		}
	}
}

// quitAgent has an agent end without draining: all of the mesh ends, so nobody is left to drain for.
func (r *runner) quitAgent() {
	ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+r.instance.StatusAddress().String()+"/quitquitquit", nil)
	if err != nil {
		return
	}
	if res, err := r.probe.client.Do(req); err == nil {
		_ = res.Body.Close()
	} else if !errors.Is(err, context.DeadlineExceeded) {
		r.probe.client.CloseIdleConnections()
	}
}
