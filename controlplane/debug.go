package controlplane

import (
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/pilotfish-mesh/pilotfish/controlplane/compare"
	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/registration"
	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
	"github.com/pilotfish-mesh/pilotfish/controlplane/translate"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// DebugHandler returns a handler of the debug pages that serves the data of the whole mesh without authentication. Use
// it only for a socket that no other user can access.
func (s *Server) DebugHandler() http.Handler { return s.debugPages(platformCaller) }

// monitoringHandler returns the handler of the monitoring port (15014).
func (s *Server) monitoringHandler() http.Handler {
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
	mux.HandleFunc("GET /{$}", serveIndex)
	pages := s.debugPages(s.identifyDebugCaller)
	mux.Handle("/debug", pages)
	mux.Handle("/debug/", pages)
	return mux
}

// debugPages returns the handler of the debug pages. identify authenticates the caller and determines which namespaces
// the caller may see.
func (s *Server) debugPages(identify identifyCaller) http.Handler {
	mux := http.NewServeMux()
	for pattern, page := range map[string]debugPage{
		"GET /debug/syncz":         s.serveClients,
		"GET /debug/problems":      s.serveProblems,
		"GET /debug/configz":       s.serveDocuments,
		"GET /debug/registryz":     s.serveRegistry,
		"GET /debug/config_dump":   s.serveConfigDump,
		"GET /debug/registrations": s.serveRegistrations,
		"GET /debug/describe":      s.serveDescribe,
		"POST /debug/diff":         s.serveDiff,
	} {
		mux.HandleFunc(pattern, restrictPage(identify, page))
	}
	mux.HandleFunc("GET /debug", serveIndex)
	mux.HandleFunc("GET /debug/{$}", serveIndex)
	return mux
}

func (s *Server) serveClients(w http.ResponseWriter, _ *http.Request, c debugCaller) {
	clients := s.discovery.EachClient()
	if c.platform {
		writeJSONList(w, clients)
		return
	}
	namespaces := s.clientNamespaces()
	writeJSONList(w, func(yield func(xds.ClientStatus) bool) {
		for client := range clients {
			if c.canSee(namespaces[client.ID]) && !yield(client) {
				return
			}
		}
	})
}

func (s *Server) serveProblems(w http.ResponseWriter, _ *http.Request, c debugCaller) {
	problems := append(s.documentAndNACKProblems(), s.analysis.problems()...)
	writeJSON(w, filterVisible(c, problems, func(p config.Problem) string { return p.Key.Namespace }))
}

func (s *Server) serveDocuments(w http.ResponseWriter, _ *http.Request, c debugCaller) {
	writeJSON(w, filterVisible(c, s.Status().Documents, func(d config.Document) string { return d.Key.Namespace }))
}

func (s *Server) serveRegistrations(w http.ResponseWriter, _ *http.Request, c debugCaller) {
	writeJSON(w, filterVisible(c, s.registrar.Workloads(), func(w registration.Status) string {
		namespace, _, _ := strings.Cut(w.Entry, "/")
		return namespace
	}))
}

func serveIndex(w http.ResponseWriter, _ *http.Request) {
	fmt.Fprint(w, `pilotfish control plane

/metrics                          metrics, for Prometheus
/ready                            200 when clients are served
/debug/syncz                      connected clients, with the versions sent, accepted and rejected
/debug/config_dump?proxyID=ID     all resources of one client, by the id of its node
/debug/describe?proxyID=ID        which documents apply to one client, and their effect
/debug/describe?workload=NS/NAME  the same for a workload without a sidecar
/debug/diff                       POST: the changes that other documents would cause in each client
/debug/registryz                  services and their endpoints
/debug/configz                    documents and their state
/debug/registrations              workloads that registered themselves
/debug/problems                   findings of the configuration
`)
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	out := json.NewEncoder(w)
	out.SetIndent("", "  ")
	_ = out.Encode(v) // fails if the client has disconnected
}

// writeJSONList writes elements as a JSON list, one by one, so that memory contains only one encoded element at a time.
func writeJSONList[T any](w http.ResponseWriter, elements iter.Seq[T]) {
	w.Header().Set("Content-Type", "application/json")
	out := json.NewEncoder(w)
	out.SetIndent("  ", "  ")
	separator := "[\n  "
	for element := range elements {
		if _, err := io.WriteString(w, separator); err != nil {
			return // the client closed the connection
		}
		if err := out.Encode(element); err != nil {
			return
		}
		separator = "  ,"
	}
	if separator == "  ," {
		_, _ = io.WriteString(w, "]\n")
	} else {
		_, _ = io.WriteString(w, "[]\n")
	}
}

// registryEntry is a service in /debug/registryz.
type registryEntry struct {
	*registry.Service
	Endpoints []registry.Endpoint `json:"endpoints"`
}

func (s *Server) serveRegistry(w http.ResponseWriter, _ *http.Request, c debugCaller) {
	services := []registryEntry{}
	if latest := s.pushLoop.snapshot(); latest != nil {
		for _, svc := range latest.Registry.Services {
			if !c.canSee(svc.Namespace) {
				continue
			}
			services = append(services, registryEntry{svc, latest.Registry.Endpoints(svc)})
		}
	}
	writeJSON(w, services)
}

// dumpedResource is a resource in /debug/config_dump.
type dumpedResource struct {
	Name     string          `json:"name"`
	Version  string          `json:"version"`
	Resource json.RawMessage `json:"resource"`
}

func (s *Server) serveConfigDump(w http.ResponseWriter, r *http.Request, c debugCaller) {
	id := r.URL.Query().Get("proxyID")
	if id == "" {
		http.Error(w, "proxyID is missing: /debug/config_dump?proxyID=ID, with the id of a node from /debug/syncz", http.StatusBadRequest)
		return
	}
	id, err := s.visibleClient(c, id)
	var resources map[string][]*xds.Resource
	if err == nil {
		resources, err = s.discovery.Resources(r.Context(), id)
	}
	if err != nil {
		http.Error(w, fmt.Sprintf("%v: /debug/syncz lists the clients", err), http.StatusNotFound)
		return
	}
	dump := map[string][]dumpedResource{}
	for typeURL, list := range resources {
		shown, err := marshalResources(list)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		dump[typeURL] = shown
	}
	writeJSON(w, dump)
}

// marshalResource returns r as JSON, without private keys. It decodes name tables separately, because they have no
// registered protobuf type.
func marshalResource(r *xds.Resource) ([]byte, error) {
	if r.Body.GetTypeUrl() == xds.NameTableType {
		return json.Marshal(map[string]any{"table": translate.DescribeNames(r.Body.GetValue())})
	}
	message, err := r.Body.UnmarshalNew()
	if err != nil {
		return nil, err
	}
	compare.Redact(message)
	return protojson.Marshal(message)
}

func marshalResources(list []*xds.Resource) ([]dumpedResource, error) {
	shown := []dumpedResource{}
	for _, r := range list {
		body, err := marshalResource(r)
		if err != nil {
			return nil, fmt.Errorf("converting the resource %q to JSON: %w", r.Name, err)
		}
		shown = append(shown, dumpedResource{Name: r.Name, Version: r.Version, Resource: body})
	}
	return shown, nil
}
