package controlplane

import (
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/pilotfish-mesh/pilotfish/controlplane/compare"
	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
	"github.com/pilotfish-mesh/pilotfish/controlplane/translate"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// DebugHandler serves what the monitoring port does, for those who reach the server by other ways.
func (s *Server) DebugHandler() http.Handler { return s.debugHandler() }

// debugHandler serves port 15014.
func (s *Server) debugHandler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.registry, promhttp.HandlerOpts{}))
	ready := func(w http.ResponseWriter, _ *http.Request) {
		ok, reason := s.Health()
		if !ok {
			http.Error(w, reason, http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ready", reason)
	}
	mux.HandleFunc("GET /ready", ready)
	mux.HandleFunc("GET /healthz/ready", ready)
	mux.HandleFunc("GET /debug/syncz", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, s.discovery.Clients()) })
	mux.HandleFunc("GET /debug/problems", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, append(s.writtenAndRejected(), s.findings.problems()...))
	})
	mux.HandleFunc("GET /debug/configz", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, s.Status().Documents) })
	mux.HandleFunc("GET /debug/registryz", s.serveRegistry)
	mux.HandleFunc("GET /debug/config_dump", s.serveConfigDump)
	mux.HandleFunc("GET /debug/registrations", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, s.registrar.Workloads()) })
	mux.HandleFunc("GET /debug/describe", s.serveDescribe)
	mux.HandleFunc("POST /debug/diff", s.serveDiff)
	mux.HandleFunc("GET /debug", serveIndex)
	mux.HandleFunc("GET /debug/{$}", serveIndex)
	mux.HandleFunc("GET /{$}", serveIndex)
	return mux
}

func serveIndex(w http.ResponseWriter, _ *http.Request) {
	fmt.Fprint(w, `pilotfish control plane

/metrics                          metrics, for Prometheus
/ready                            200 when clients are served
/debug/syncz                      connected clients: what each was sent, accepted and rejected
/debug/config_dump?proxyID=ID     all resources of one client, by the id of its node
/debug/describe?proxyID=ID        which documents apply to one client, and what that means
/debug/diff                       POST: what other documents would change in each client
/debug/registryz                  services and their endpoints
/debug/configz                    documents, and what became of each
/debug/registrations              workloads that registered themselves
/debug/problems                   what is wrong with the configuration
`)
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	out := json.NewEncoder(w)
	out.SetIndent("", "  ")
	_ = out.Encode(v) // the client may be gone, which is its own affair
}

// registered is a service as /debug/registryz shows it.
type registered struct {
	*registry.Service
	Endpoints []registry.Endpoint `json:"endpoints"`
}

func (s *Server) serveRegistry(w http.ResponseWriter, _ *http.Request) {
	services := []registered{}
	if latest := s.feed.snapshot(); latest != nil {
		for _, svc := range latest.Registry.Services {
			services = append(services, registered{svc, latest.Registry.Endpoints(svc)})
		}
	}
	writeJSON(w, services)
}

// dumped is a resource as /debug/config_dump shows it.
type dumped struct {
	Name     string          `json:"name"`
	Version  string          `json:"version"`
	Resource json.RawMessage `json:"resource"`
}

func (s *Server) serveConfigDump(w http.ResponseWriter, r *http.Request) {
	id := r.URL.Query().Get("proxyID")
	if id == "" {
		http.Error(w, "proxyID is missing: /debug/config_dump?proxyID=ID, with the id of a node from /debug/syncz", http.StatusBadRequest)
		return
	}
	resources, err := s.discovery.Resources(r.Context(), id)
	if err != nil {
		http.Error(w, fmt.Sprintf("%v: /debug/syncz lists the clients", err), http.StatusNotFound)
		return
	}
	dump := map[string][]dumped{}
	for typeURL, list := range resources {
		shown, err := dumpAll(list)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		dump[typeURL] = shown
	}
	writeJSON(w, dump)
}

// dump gives a resource as JSON, without private keys; of name tables there is no type to be had.
func dump(r *xds.Resource) ([]byte, error) {
	if r.Body.GetTypeUrl() == xds.NameTableType {
		return json.Marshal(map[string]any{"table": translate.DescribeNames(r.Body.GetValue())})
	}
	message, err := r.Body.UnmarshalNew()
	if err != nil {
		return nil, err
	}
	compare.Hide(message)
	return protojson.Marshal(message)
}

func dumpAll(list []*xds.Resource) ([]dumped, error) {
	shown := []dumped{}
	for _, r := range list {
		body, err := dump(r)
		if err != nil {
			return nil, fmt.Errorf("resource %q: %w", r.Name, err)
		}
		shown = append(shown, dumped{Name: r.Name, Version: r.Version, Resource: body})
	}
	return shown, nil
}
