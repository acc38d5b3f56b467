package mesh

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"slices"
)

// serveDebug serves the debug pages of the control plane, wherever in the mesh's network it listens.
func (m *Mesh) serveDebug(w http.ResponseWriter, r *http.Request) {
	p := m.currentPlane()
	if p == nil {
		http.Error(w, "the control plane is not there yet", http.StatusServiceUnavailable)
		return
	}
	handler := p.debugHandler()
	if handler == nil {
		http.Error(w, "the control plane does not run", http.StatusServiceUnavailable)
		return
	}
	handler.ServeHTTP(w, r)
}

// debugHandler is nil while the control plane does not run.
func (p *plane) debugHandler() http.Handler {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.server == nil {
		return nil
	}
	return p.server.DebugHandler()
}

// What of an Envoy's and an agent's own pages is passed on: what is to be read, and the levels of logs.
var (
	envoyPages = []string{"config_dump", "clusters", "certs", "server_info", "logging", "stats"}
	agentPages = []string{"debug/certz"}
)

// serveWorkload passes on a page of a workload's Envoy or agent.
func (m *Mesh) serveWorkload(pages []string, address func(*Instance) netip.AddrPort) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		page := r.PathValue("page")
		if !slices.Contains(pages, page) || r.Method == http.MethodPost && page != "logging" {
			http.Error(w, fmt.Sprintf("the page %q is not passed on", page), http.StatusNotFound)
			return
		}
		found, err := m.runnerOf(r.PathValue("name"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusNotFound)
			return
		}
		target := &url.URL{Scheme: "http", Host: address(found.instance).String()}
		proxy := &httputil.ReverseProxy{
			Transport: found.probe.client.Transport,
			Rewrite: func(out *httputil.ProxyRequest) {
				out.SetURL(target)
				out.Out.URL.Path, out.Out.URL.RawPath, out.Out.Host = "/"+page, "", target.Host
			},
			ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
				http.Error(w, fmt.Sprintf("%s does not answer: %v", found.instance.Name, cause(err)), http.StatusBadGateway)
			},
		}
		proxy.ServeHTTP(w, r)
	}
}

func (m *Mesh) runnerOf(name string) (*runner, error) {
	for _, r := range m.snapshotRunners() {
		if r.instance.Name == name {
			return r, nil
		}
	}
	return nil, errors.New("mesh " + m.Name() + " has no workload instance \"" + name + "\": `pilotfish status` lists those it has")
}

// HTTP is a client of the mesh's control socket, by which the control plane's debug pages are reached at any host, and
// those of an Envoy or an agent below /workloads/NAME/envoy and /workloads/NAME/agent.
func (c *Client) HTTP() *http.Client { return c.http }
