package kube

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	meshconfig "istio.io/api/mesh/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/internal/backoff"
)

// relistDelay is how long the source collects newly selected namespaces before it reads the objects again.
const relistDelay = 500 * time.Millisecond

// SourceConfig configures a Source.
type SourceConfig struct {
	Client *Client
	// Parser validates the documents of Istio's kinds.
	Parser config.Parser
	// Logger logs changes of the connection and newly watched kinds; nil discards them.
	Logger *slog.Logger
}

// Source is a store of a cluster's Services, EndpointSlices, Pods, Nodes and Namespaces, and of its documents of Istio's
// kinds. While the API server is unavailable, the last known objects stay in force.
type Source struct {
	config.Store
	apply     applyFunc
	cfg       SourceConfig
	log       *slog.Logger
	selection *selection
	accounts  *uidTable
	crds      *crdReader
	relists   chan struct{} // has one element when the objects must be read again
	synced    chan struct{}

	mu        sync.Mutex
	feeds     map[string]*feed // by kind
	documents map[config.Kind]*documentTable
	failing   map[string]bool // the kinds whose last request failed
}

// NewSource returns a source without objects. Run reads them.
func NewSource(cfg SourceConfig) (*Source, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	store, apply := config.NewFileStore()
	s := &Source{
		Store: store, apply: apply, cfg: cfg, log: cfg.Logger, selection: newSelection(), accounts: newUIDTable(),
		relists: make(chan struct{}, 1), synced: make(chan struct{}),
		feeds: map[string]*feed{}, documents: map[config.Kind]*documentTable{}, failing: map[string]bool{},
	}
	if err := s.addClusterFeeds(); err != nil {
		return nil, err
	}
	var err error
	s.crds, err = newCRDReader(s)
	return s, err
}

// addClusterFeeds adds the feeds of the kinds that every cluster has.
func (s *Source) addClusterFeeds() error {
	converter := newConverter()
	for _, k := range clusterKinds {
		group, err := schema.ParseGroupVersion(k.apiVersion)
		if err != nil {
			return err
		}
		client, err := s.cfg.Client.REST(group)
		if err != nil {
			return err
		}
		list := &listWatch{client: client, resource: resource{
			name: k.plural, newList: k.newList, convert: func(o runtime.Object) any { return converter.convert(k, o) },
		}}
		t := &resourceTable{kind: k.kind, store: s.Store, apply: s.apply}
		var selection *selection
		switch k.kind {
		case config.Namespace:
			t.onChange = s.noteNamespaces
		case config.Node:
		default:
			selection = s.selection
		}
		s.addFeed(newFeed(string(k.kind), list, t, selection, s.checkSynced))
	}
	client, err := s.cfg.Client.REST(schema.GroupVersion{Version: "v1"})
	if err != nil {
		return err
	}
	list := &listWatch{client: client, resource: resource{name: "serviceaccounts", encoding: onlyMetadata, convert: convertMetadata}}
	s.addFeed(newFeed("ServiceAccount", list, s.accounts, s.selection, s.checkSynced))
	return nil
}

func (s *Source) addFeed(f *feed) {
	f.onReport = func(err error) { s.noteResult(f.kind, err) }
	s.mu.Lock()
	defer s.mu.Unlock()
	s.feeds[f.kind] = f
}

// convertMetadata returns nil if the object is being deleted, otherwise an empty value.
func convertMetadata(o runtime.Object) any {
	if meta, err := meta.Accessor(o); err != nil || meta.GetDeletionTimestamp() != nil {
		return nil
	}
	return struct{}{}
}

// AccountUID returns the UID of a service account. ok is false if the account does not exist, is being deleted, or is in
// a namespace that the discoverySelectors do not select.
func (s *Source) AccountUID(namespace, name string) (uid string, ok bool) {
	return s.accounts.get(namespace, name)
}

// Synced returns a channel that is closed when the source has received the objects of all kinds once.
func (s *Source) Synced() <-chan struct{} { return s.synced }

// UseMesh applies the discoverySelectors of a mesh configuration.
func (s *Source) UseMesh(mesh *meshconfig.MeshConfig) {
	changed, invalid := s.selection.setSelectors(mesh.GetDiscoverySelectors())
	for _, err := range invalid {
		s.log.Error("a discovery selector of the mesh configuration is invalid and selects nothing", "error", err)
	}
	if changed {
		s.updateNamespaces()
		s.requestRelist()
	}
}

// noteNamespaces applies changed labels of namespaces to the selection.
func (s *Source) noteNamespaces(put []*config.Resource, del []config.Key) {
	changed, added := false, false
	for _, r := range put {
		c, a := s.selection.setNamespace(r.Name, r.Labels)
		changed, added = changed || c, added || a
	}
	for _, key := range del {
		s.selection.removeNamespace(key.Name)
	}
	if changed {
		s.updateNamespaces()
	}
	if added { // the objects of these namespaces were not stored
		s.requestRelist()
	}
}

func (s *Source) updateNamespaces() {
	for _, f := range s.listFeeds() {
		f.updateNamespaces()
	}
}

func (s *Source) requestRelist() {
	select {
	case s.relists <- struct{}{}:
	default:
	}
}

// listFeeds returns the feeds in the order of their kinds.
func (s *Source) listFeeds() []*feed {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Values(s.feeds), func(a, b *feed) int { return cmp.Compare(a.kind, b.kind) })
}

func (s *Source) feed(kind string) *feed {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.feeds[kind]
}

// Run reads the objects of the cluster until ctx ends.
func (s *Source) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	// The selection needs the namespaces before the objects in them.
	namespaces := s.feed(string(config.Namespace))
	running.Go(func() { namespaces.run(ctx) })
	if !namespaces.awaitSync(ctx) {
		return nil
	}
	for _, f := range s.listFeeds() {
		if f != namespaces {
			running.Go(func() { f.run(ctx) })
		}
	}
	running.Go(func() { s.crds.run(ctx) })
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.relists:
		}
		if !backoff.Sleep(ctx, relistDelay) {
			return nil
		}
		for _, f := range s.listFeeds() {
			if f.selection != nil {
				f.relist()
			}
		}
	}
}

// checkSynced closes the channel synced when all kinds are synced.
func (s *Source) checkSynced() {
	if missing := s.listMissing(); len(missing) > 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.synced:
	default:
		close(s.synced)
		s.log.Info("the control plane has the objects of the cluster", "server", s.cfg.Client.Host(), "missingCRDs", strings.Join(s.missingKinds(), ","))
	}
}

// missingKinds returns the Istio kinds whose CustomResourceDefinition the cluster does not have. The caller has locked
// mu.
func (s *Source) missingKinds() (names []string) {
	for _, kind := range config.IstioKinds() {
		if s.documents[kind] == nil {
			names = append(names, string(kind))
		}
	}
	return names
}

// listMissing describes the kinds whose objects the source has not received yet.
func (s *Source) listMissing() (missing []string) {
	for _, f := range s.listFeeds() {
		status, isMissing := f.readStatus()
		switch {
		case isMissing && status.failure != "":
			missing = append(missing, fmt.Sprintf("%s (%s)", f.kind, status.failure))
		case isMissing:
			missing = append(missing, f.kind)
		}
	}
	if reason := s.crds.missing(); reason != "" {
		missing = append(missing, reason)
	}
	return missing
}

// noteResult logs when the API server becomes unavailable or available. A missing permission concerns one kind, so the
// source logs it for each kind.
func (s *Source) noteResult(kind string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil && s.failing[kind]:
		delete(s.failing, kind)
		if len(s.failing) == 0 {
			s.log.Info("the control plane reads the objects of the cluster again", "server", s.cfg.Client.Host())
		}
	case err != nil && !s.failing[kind]:
		if len(s.failing) == 0 || apierrors.IsForbidden(err) {
			s.log.Warn("reading objects of the cluster failed; the last known ones stay in force", "server", s.cfg.Client.Host(), "kind", kind, "error", err)
		}
		s.failing[kind] = true
	}
}

// Health reports whether all kinds can be read, and the reason if not.
func (s *Source) Health() (ok bool, reason string) {
	name := "Kubernetes cluster " + s.cfg.Client.Host()
	if missing := s.listMissing(); len(missing) > 0 && !isClosed(s.synced) {
		return false, fmt.Sprintf("%s: these objects were not received yet, so proxies receive no configuration: %s", name, strings.Join(missing, ", "))
	}
	var failures []string
	for _, f := range s.listFeeds() {
		if status, _ := f.readStatus(); status.failure != "" {
			failures = append(failures, fmt.Sprintf("%s (%s)", f.kind, status.failure))
		}
	}
	if len(failures) == 0 {
		return true, ""
	}
	more := ""
	if len(failures) > 1 {
		more = fmt.Sprintf(" and %d more kinds", len(failures)-1)
	}
	return false, fmt.Sprintf("%s: reading failed for %s%s; the last known objects stay in force", name, failures[0], more)
}

// Problems returns the problems of the documents, and of the connection.
func (s *Source) Problems() (all []config.Problem) {
	if ok, reason := s.Health(); !ok {
		all = append(all, config.Problem{
			Code: config.SourceUnavailable, Severity: config.Warning, At: config.Position{File: "cluster"}, Message: reason,
			Remedy: "check the API server, the network to it and the permissions of the control plane's service account",
		})
	}
	for _, t := range s.documentTables() {
		all = append(all, t.problems()...)
	}
	return all
}

// Documents returns the state of each document of an Istio kind.
func (s *Source) Documents() (all []config.Document) {
	for _, t := range s.documentTables() {
		all = append(all, t.states()...)
	}
	return all
}

func (s *Source) documentTables() (tables []*documentTable) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, kind := range config.IstioKinds() {
		if t := s.documents[kind]; t != nil {
			tables = append(tables, t)
		}
	}
	return tables
}
