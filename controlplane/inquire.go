package controlplane

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

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
	select {
	case s.comparing <- struct{}{}:
		defer func() { <-s.comparing }()
	default:
		http.Error(w, "another comparison is being made: try again", http.StatusTooManyRequests)
		return
	}
	var asked DiffRequest
	if err := json.NewDecoder(io.LimitReader(r.Body, maxDiffBytes)).Decode(&asked); err != nil {
		http.Error(w, fmt.Sprintf("reading the files: %v; at most %d MiB are taken", err, maxDiffBytes>>20), http.StatusBadRequest)
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
	documents := config.NewMemoryStore()
	parser := config.Parser{Check: envoyfilter.Check}
	for _, f := range asked.Files {
		resources, problems := parser.Parse(f.Name, []byte(f.Text))
		answer.Problems = append(answer.Problems, problems...)
		documents.Put(s.withAges(resources)...)
	}
	stores := append([]config.Store{documents}, s.cfg.Stores...)
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

// withAges gives documents that are in force already their age: of several for one host the oldest counts.
func (s *Server) withAges(resources []*config.Resource) []*config.Resource {
	for _, r := range resources {
		if old := s.joined.Get(r.Key); old != nil && r.Created.IsZero() {
			r.Created = old.Created
		}
	}
	slices.SortStableFunc(resources, func(a, b *config.Resource) int { return cmp.Compare(a.Key.String(), b.Key.String()) })
	return resources
}
