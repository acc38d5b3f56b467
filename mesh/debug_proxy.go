package mesh

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
)

// serveDebug serves the control plane's debug pages.
func (m *Mesh) serveDebug(w http.ResponseWriter, r *http.Request) {
	p := m.currentControlPlane()
	if p == nil {
		http.Error(w, "the control plane is not started yet", http.StatusServiceUnavailable)
		return
	}
	handler := p.debugHandler()
	if handler == nil {
		http.Error(w, "the control plane is not running", http.StatusServiceUnavailable)
		return
	}
	handler.ServeHTTP(w, r)
}

// debugHandler returns the handler of the control plane's debug pages, or nil while the control plane is stopped.
func (p *controlPlane) debugHandler() http.Handler {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.server == nil {
		return nil
	}
	return p.server.DebugHandler()
}

// Pages of Envoy and the agent that the control socket forwards. They are read-only, except those for log levels.
var (
	envoyPages = []string{"config_dump", "clusters", "certs", "server_info", "logging", "stats"}
	agentPages = []string{"debug/certz"}
)

// serveWorkload returns a handler that forwards requests for the listed pages to a workload's Envoy or agent. host is
// adminHost or controlHost, which selects the unix socket.
func (m *Mesh) serveWorkload(pages []string, host string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		page := r.PathValue("page")
		if !slices.Contains(pages, page) || r.Method == http.MethodPost && page != "logging" {
			http.Error(w, fmt.Sprintf("the mesh does not forward requests for the page %q", page), http.StatusNotFound)
			return
		}
		found, err := m.findRunner(r.PathValue("name"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusNotFound)
			return
		}
		if found.agent == nil {
			http.Error(w, found.instance.Name+" has no sidecar", http.StatusNotFound)
			return
		}
		target := &url.URL{Scheme: "http", Host: host}
		proxy := &httputil.ReverseProxy{
			Transport: found.probe.client.Transport,
			Rewrite: func(out *httputil.ProxyRequest) {
				out.SetURL(target)
				out.Out.URL.Path, out.Out.URL.RawPath, out.Out.Host = "/"+page, "", target.Host
			},
			ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
				http.Error(w, fmt.Sprintf("%s does not respond: %v", found.instance.Name, innermostError(err)), http.StatusBadGateway)
			},
		}
		proxy.ServeHTTP(w, r)
	}
}

func (m *Mesh) findRunner(name string) (*instanceRunner, error) {
	for _, r := range m.snapshotRunners() {
		if r.instance.Name == name {
			return r, nil
		}
	}
	return nil, errors.New("mesh " + m.Name() + " has no workload instance \"" + name + "\": `pilotfish status` lists the instances")
}

// HTTP returns an HTTP client of the control socket. It ignores the host of a URL. Paths under /debug/ are the control
// plane's debug pages. Paths under /workloads/NAME/envoy and /workloads/NAME/agent are pages of Envoy and the agent.
func (c *Client) HTTP() *http.Client { return c.http }
