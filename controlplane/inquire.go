package controlplane

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	networkingbeta "istio.io/api/networking/v1beta1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/compare"
	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/describe"
	"github.com/pilotfish-mesh/pilotfish/controlplane/envoyfilter"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/translate"
)

// maxDiffBytes bounds the documents of one request to compare.
const maxDiffBytes = 64 << 20

// DiffRequest are the files of a directory that may be put in the place of the present ones.
type DiffRequest struct {
	Files []DiffFile `json:"files"`
	// Secrets are the Kubernetes Secrets of those files, which are not in them.
	Secrets []DiffSecret `json:"secrets,omitempty"`
}

// DiffSecret is a Kubernetes Secret without its private key, and without what registries ask for.
type DiffSecret struct {
	Namespace   string `json:"namespace"`
	Name        string `json:"name"`
	Certificate []byte `json:"certificate,omitempty"`
	Authorities []byte `json:"authorities,omitempty"`
	Revoked     []byte `json:"revoked,omitempty"`
	// Registries: it has something that registries ask for.
	Registries bool `json:"registries,omitempty"`
}

// resource is the Secret, with the key of the one that is in force now where that belongs to the same certificate, and with
// what that shows to registries.
func (d DiffSecret) resource(now config.Store) *config.Resource {
	key := config.Key{Kind: config.Secret, Namespace: d.Namespace, Name: d.Name}
	spec := &config.SecretSpec{Certificate: d.Certificate, Authorities: d.Authorities, Revoked: d.Revoked}
	if len(d.Certificate) > 0 {
		spec.Key = []byte("(not sent)")
	}
	if d.Registries {
		spec.Registries = []byte("(not sent)")
	}
	if old := now.Get(key); old != nil {
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

// DiffFile is one file.
type DiffFile struct {
	Name string `json:"name"`
	Text string `json:"text"`
}

// DiffAnswer is what the files would change in the connected proxies.
type DiffAnswer struct {
	// Proxies counts those that were looked at.
	Proxies  int              `json:"proxies"`
	Problems []config.Problem `json:"problems"`
	Groups   []compare.Group  `json:"groups"`
}

// clientProxy gives what is known of a connected client, by its ID or its node's id.
func (s *Server) clientProxy(id string) (*translate.Proxy, bool) {
	for client, p := range s.discovery.Proxies() {
		if own, ok := p.(proxy); ok && (client == id || own.ID == id) {
			return own.Proxy, true
		}
	}
	return nil, false
}

// ProxyConfig is what ProxyConfigs say of a workload; empty while nothing is known yet.
func (s *Server) ProxyConfig(namespace string, labels map[string]string) *networkingbeta.ProxyConfig {
	latest := s.feed.snapshot()
	if latest == nil {
		return &networkingbeta.ProxyConfig{}
	}
	return latest.ProxyConfig(namespace, labels)
}

// Bootstrap is what EnvoyFilters merge into the bootstrap of a workload's proxy, in JSON; nothing where none does, or while
// nothing is known yet.
func (s *Server) Bootstrap(namespace string, labels map[string]string, gateway bool) ([]byte, error) {
	latest := s.feed.snapshot()
	if latest == nil {
		return nil, nil
	}
	p := &translate.Proxy{Type: translate.Sidecar, Namespace: namespace, Labels: labels}
	if gateway {
		p.Type = translate.Router
	}
	return translate.Bootstrap(latest, p)
}

func (s *Server) serveDescribe(w http.ResponseWriter, r *http.Request) {
	id := r.URL.Query().Get("proxyID")
	p, ok := s.clientProxy(id)
	latest := s.feed.snapshot()
	if !ok || latest == nil {
		http.Error(w, fmt.Sprintf("no client %q is connected: /debug/syncz lists the clients", id), http.StatusNotFound)
		return
	}
	writeJSON(w, describe.Workload(latest, p))
}

func (s *Server) serveDiff(w http.ResponseWriter, r *http.Request) {
	var asked DiffRequest
	if err := json.NewDecoder(io.LimitReader(r.Body, maxDiffBytes)).Decode(&asked); err != nil {
		http.Error(w, fmt.Sprintf("reading the files: %v; at most %d MiB are taken", err, maxDiffBytes>>20), http.StatusBadRequest)
		return
	}
	select {
	case s.comparing <- struct{}{}:
		defer func() { <-s.comparing }()
	default:
		http.Error(w, "another comparison is being made: try again", http.StatusTooManyRequests)
		return
	}
	answer, err := s.diff(asked)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	writeJSON(w, answer)
}

// diff compares what the connected proxies have with what they would have of these files.
func (s *Server) diff(asked DiffRequest) (*DiffAnswer, error) {
	before := s.feed.snapshot()
	if before == nil {
		return nil, errors.New("there is no configuration yet")
	}
	answer := &DiffAnswer{Problems: []config.Problem{}, Groups: []compare.Group{}}
	files := make([]config.File, len(asked.Files))
	for i, f := range asked.Files {
		files[i] = config.File(f)
	}
	documents, problems := config.ReadTexts(files, config.Parser{Check: envoyfilter.Check}, s.followed())
	answer.Problems = append(answer.Problems, problems...)
	secrets := config.NewMemoryStore()
	for _, d := range asked.Secrets {
		secrets.Put(d.resource(s.joined))
	}
	stores := append([]config.Store{documents, secrets}, s.cfg.Stores...)
	in := before.Inputs()
	in.Store = config.Join(append(stores, s.registrar)...)
	after := snapshot.Build(nil, in, nil)
	answer.Problems = append(answer.Problems, config.Unsuppressed(after.Problems(), in.Store)...)
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

// followed are the documents that files say now.
func (s *Server) followed() config.Store {
	if s.dirs == nil {
		return nil
	}
	return s.dirs
}
