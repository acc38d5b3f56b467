package controlplane

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"
	networkingbeta "istio.io/api/networking/v1beta1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/analysis"
	"github.com/pilotfish-mesh/pilotfish/controlplane/compare"
	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/config/dirstore"
	"github.com/pilotfish-mesh/pilotfish/controlplane/describe"
	"github.com/pilotfish-mesh/pilotfish/controlplane/envoyfilter"
	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/translate"
)

// maxDiffBytes limits the body of a comparison request.
const maxDiffBytes = 8 << 20

// DiffRequest contains the files that would replace the current files of the configuration directories.
type DiffRequest struct {
	Files []DiffFile `json:"files"`
	// Secrets contains the Kubernetes Secrets of the files, without private values. The text of Files does not contain
	// them.
	Secrets []DiffSecret `json:"secrets,omitempty"`
}

// DiffSecret is a Kubernetes Secret without its private key and registry credentials.
type DiffSecret struct {
	Namespace   string `json:"namespace"`
	Name        string `json:"name"`
	Certificate []byte `json:"certificate,omitempty"`
	Authorities []byte `json:"authorities,omitempty"`
	Revoked     []byte `json:"revoked,omitempty"`
	// Registries is true if the Secret has registry credentials.
	Registries bool `json:"registries,omitempty"`
}

// resource returns the Secret as a resource. It completes the values that were not sent from the Secret of the same
// name in current: the registry credentials, and the private key if the certificates are equal. If there is none, it
// sets a placeholder.
func (d DiffSecret) resource(current config.Store) *config.Resource {
	key := config.Key{Kind: config.Secret, Namespace: d.Namespace, Name: d.Name}
	spec := &config.SecretSpec{Certificate: d.Certificate, Authorities: d.Authorities, Revoked: d.Revoked}
	if len(d.Certificate) > 0 {
		spec.Key = []byte("(not sent)")
	}
	if d.Registries {
		spec.Registries = []byte("(not sent)")
	}
	if old := current.Get(key); old != nil {
		same := old.Spec.(*config.SecretSpec)
		if bytes.Equal(same.Certificate, d.Certificate) {
			spec.Key = same.Key
		}
		if d.Registries && len(same.Registries) > 0 {
			spec.Registries = same.Registries
		}
	}
	return &config.Resource{Key: key, APIVersion: "v1", Spec: spec}
}

// DiffFile is the name and text of one file.
type DiffFile struct {
	Name string `json:"name"`
	Text string `json:"text"`
}

// DiffAnswer lists the changes that the files would cause in the configuration of connected proxies.
type DiffAnswer struct {
	// Proxies counts the compared proxies.
	Proxies  int              `json:"proxies"`
	Problems []config.Problem `json:"problems"`
	Groups   []compare.Group  `json:"groups"`
}

// clientProxy returns the proxy of the connected client whose ID or node id is id. It returns false if there is none.
func (s *Server) clientProxy(id string) (*translate.Proxy, bool) {
	for client, p := range s.discovery.Proxies() {
		if own, ok := p.(proxy); ok && (client == id || own.ID == id) {
			return own.Proxy, true
		}
	}
	return nil, false
}

// ProxyConfig returns the effective ProxyConfig of the workload with these labels. Before the first snapshot, the
// result is empty.
func (s *Server) ProxyConfig(namespace string, labels map[string]string) *networkingbeta.ProxyConfig {
	latest := s.pushLoop.snapshot()
	if latest == nil {
		return &networkingbeta.ProxyConfig{}
	}
	return latest.ProxyConfig(namespace, labels)
}

// Bootstrap returns the JSON that EnvoyFilters merge into the bootstrap of the workload's proxy. It returns nil if no
// EnvoyFilter does so, or before the first snapshot.
func (s *Server) Bootstrap(namespace string, labels map[string]string, gateway bool) ([]byte, error) {
	latest := s.pushLoop.snapshot()
	if latest == nil {
		return nil, nil
	}
	p := &translate.Proxy{Type: translate.Sidecar, Namespace: namespace, Labels: labels}
	if gateway {
		p.Type = translate.Router
	}
	return translate.Bootstrap(latest, p)
}

func (s *Server) serveDescribe(w http.ResponseWriter, r *http.Request, c debugCaller) {
	if name := r.URL.Query().Get("workload"); name != "" {
		s.describeWithoutSidecar(w, name, c)
		return
	}
	id, err := s.visibleClient(c, r.URL.Query().Get("proxyID"))
	if err != nil {
		http.Error(w, fmt.Sprintf("%v: /debug/syncz lists the clients", err), http.StatusNotFound)
		return
	}
	p, ok := s.clientProxy(id)
	latest := s.pushLoop.snapshot()
	if !ok || latest == nil {
		http.Error(w, fmt.Sprintf("no client %q is connected: /debug/syncz lists the clients", id), http.StatusNotFound)
		return
	}
	writeJSON(w, describe.Workload(latest, p))
}

// describeWithoutSidecar responds with the description of a workload without a sidecar. name is NAMESPACE/NAME.
func (s *Server) describeWithoutSidecar(w http.ResponseWriter, name string, c debugCaller) {
	namespace, _, _ := strings.Cut(name, "/")
	if latest := s.pushLoop.snapshot(); latest != nil && c.canSee(namespace) {
		for _, entry := range latest.Registry.SelectedWorkloads(namespace, nil) {
			spec := entry.Spec.(*networking.WorkloadEntry)
			if namespace+"/"+entry.Name == name && !registry.HasSidecar(spec.GetLabels(), spec.GetServiceAccount()) {
				writeJSON(w, describe.WithoutSidecar(latest, entry))
				return
			}
		}
	}
	http.Error(w, fmt.Sprintf("no workload %q without a sidecar is registered", name), http.StatusNotFound)
}

// serveDiff responds with the changes that the documents in the request would cause. It is only for the platform. While
// another comparison is running, it refuses the request before it reads the body.
func (s *Server) serveDiff(w http.ResponseWriter, r *http.Request, c debugCaller) {
	if !c.platform {
		http.Error(w, "only accounts of namespace "+s.rootNamespace()+" may compare documents of the whole mesh", http.StatusForbidden)
		return
	}
	select {
	case s.compareSlot <- struct{}{}:
		defer func() { <-s.compareSlot }()
	default:
		http.Error(w, "another comparison is running: try again", http.StatusTooManyRequests)
		return
	}
	var request DiffRequest
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxDiffBytes)).Decode(&request); err != nil {
		http.Error(w, fmt.Sprintf("reading the files: %v; at most %d MiB are accepted: compare larger directories with --from", err, maxDiffBytes>>20), http.StatusBadRequest)
		return
	}
	answer, err := s.diff(request)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	writeJSON(w, answer)
}

// diff compares the current resources of the connected proxies with the resources that would result from the files in
// request.
func (s *Server) diff(request DiffRequest) (*DiffAnswer, error) {
	before := s.pushLoop.snapshot()
	if before == nil {
		return nil, errors.New("the control plane has no configuration yet")
	}
	answer := &DiffAnswer{Problems: []config.Problem{}, Groups: []compare.Group{}}
	files := make([]dirstore.File, len(request.Files))
	for i, f := range request.Files {
		files[i] = dirstore.File(f)
	}
	documents, problems := dirstore.ReadTexts(files, config.Parser{Check: envoyfilter.Check, OnInvalidPolicy: s.cfg.OnInvalidPolicy}, s.directoryDocuments())
	answer.Problems = append(answer.Problems, problems...)
	secrets := config.NewMemoryStore()
	for _, d := range request.Secrets {
		secrets.Put(d.resource(s.store))
	}
	stores := slices.Concat([]config.Store{documents, secrets}, s.cfg.Stores, s.remote, []config.Store{s.registrar})
	in := before.Inputs()
	in.Store = config.NewMultiStore(stores...)
	after := snapshot.Build(nil, in, nil)
	answer.Problems = append(answer.Problems, config.Unsuppressed(analysis.Check(after), in.Store)...)
	var proxies []*translate.Proxy
	for _, p := range s.discovery.Proxies() {
		if own, ok := p.(proxy); ok {
			proxies = append(proxies, own.Proxy)
		}
	}
	slices.SortFunc(proxies, func(a, b *translate.Proxy) int { return strings.Compare(a.ID, b.ID) })
	answer.Proxies = len(proxies)
	groups, err := compare.Proxies(before, after, proxies)
	answer.Groups = append(answer.Groups, groups...)
	return answer, err
}

// directoryDocuments returns the store of the configuration directories, or nil if there are none.
func (s *Server) directoryDocuments() config.Store {
	if s.dirs == nil {
		return nil
	}
	return s.dirs
}
