package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/internal/backoff"
)

// crdTimeout limits the time to read one CustomResourceDefinition.
const crdTimeout = 10 * time.Second

var crdGroup = schema.GroupVersion{Group: "apiextensions.k8s.io", Version: "v1"}

// crdReader starts a feed for each Istio kind whose CustomResourceDefinition exists, and stops it when the definition is
// removed. It watches the metadata of definitions, because their schemas are large, and reads single definitions. It
// implements table.
type crdReader struct {
	source *Source
	client *rest.RESTClient
	feed   *feed
	wake   chan struct{} // has one element when names are waiting

	mu      sync.Mutex
	names   map[string]bool // the existing definitions of Istio's groups
	waiting map[string]int  // the definitions that were added, changed or removed since they were read, with the number of changes
	failure string          // why a definition could not be read, or ""

	// Only the goroutine of the method run uses the fields below.
	running map[string]*documentFeed // by name of the definition
	feeds   sync.WaitGroup
}

// documentFeed is the running feed of an Istio kind.
type documentFeed struct {
	kind   config.Kind
	crd    definition
	cancel context.CancelFunc
	done   chan struct{}
	table  *documentTable
}

// definition contains the fields of a CustomResourceDefinition that identify the URL of its objects.
type definition struct {
	group, kind, plural, version string
}

func newCRDReader(s *Source) (*crdReader, error) {
	client, err := s.cfg.Client.REST(crdGroup)
	if err != nil {
		return nil, err
	}
	c := &crdReader{
		source: s, client: client, wake: make(chan struct{}, 1), names: map[string]bool{}, waiting: map[string]int{}, running: map[string]*documentFeed{},
	}
	list := &listWatch{client: client, resource: resource{name: "customresourcedefinitions", encoding: onlyMetadata, convert: func(runtime.Object) any { return nil }}}
	c.feed = newFeed("CustomResourceDefinition", list, c, nil, c.notify)
	s.addFeed(c.feed)
	return c, nil
}

// isIstioDefinition reports whether a definition's name, PLURAL.GROUP, is in one of Istio's groups.
func isIstioDefinition(name string) bool {
	_, group, _ := strings.Cut(name, ".")
	return slices.ContainsFunc(config.IstioKinds(), func(k config.Kind) bool { return strings.HasPrefix(k.APIVersions()[0], group+"/") })
}

func (c *crdReader) put(o *object) { c.change(o.name, true) }

func (c *crdReader) remove(o *object) { c.change(o.name, false) }

func (c *crdReader) change(name string, exists bool) {
	if !isIstioDefinition(name) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.names[name] = true; !exists {
		delete(c.names, name)
	}
	c.waiting[name]++
	c.notify()
}

func (c *crdReader) replace(all []*object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	old := c.names
	c.names = map[string]bool{}
	for _, o := range all {
		if isIstioDefinition(o.name) {
			c.names[o.name] = true
			c.waiting[o.name]++
		}
	}
	for name := range old {
		if !c.names[name] {
			c.waiting[name]++
		}
	}
	c.notify()
}

func (c *crdReader) removeNamespaces(func(string) bool) {}

func (c *crdReader) size() (objects, bytes int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.names), 100 * len(c.names)
}

func (c *crdReader) notify() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// missing describes the definitions that were not read yet. It returns "" if there are none.
func (c *crdReader) missing() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case len(c.waiting) == 0:
		return ""
	case c.failure != "":
		return fmt.Sprintf("%d CustomResourceDefinitions (%s)", len(c.waiting), c.failure)
	}
	return fmt.Sprintf("%d CustomResourceDefinitions", len(c.waiting))
}

// run reads changed definitions until ctx ends.
func (c *crdReader) run(ctx context.Context) {
	defer c.feeds.Wait()
	retry := backoff.Backoff{Min: minRetry, Max: maxRetry}
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.wake:
		}
		err := c.readWaiting(ctx)
		c.mu.Lock()
		if c.failure = ""; err != nil {
			c.failure = err.Error()
		}
		c.mu.Unlock()
		c.source.checkSynced()
		if err == nil {
			retry.Reset()
			continue
		}
		if !backoff.Sleep(ctx, retry.Next()) {
			return
		}
		c.notify()
	}
}

// readWaiting reads the waiting definitions. It returns an error if one of them could not be read.
func (c *crdReader) readWaiting(ctx context.Context) (err error) {
	c.mu.Lock()
	waiting := maps.Clone(c.waiting)
	c.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(waiting)) {
		c.mu.Lock()
		exists := c.names[name]
		c.mu.Unlock()
		if failed := c.read(ctx, name, exists); failed != nil {
			err = failed
			continue
		}
		c.mu.Lock()
		if c.waiting[name] == waiting[name] { // the definition did not change meanwhile
			delete(c.waiting, name)
		}
		c.mu.Unlock()
	}
	return err
}

// read starts or stops the feed of one definition.
func (c *crdReader) read(ctx context.Context, name string, exists bool) error {
	var crd definition
	if exists {
		var err error
		if crd, err = c.get(ctx, name); err != nil {
			return fmt.Errorf("reading %s: %w", name, err)
		}
	}
	old := c.running[name]
	if old != nil && old.crd == crd {
		return nil
	}
	kind, known := istioKind(crd.group, crd.kind)
	if old != nil {
		old.stop()
		delete(c.running, name)
		if !known || crd.version == "" {
			c.source.removeDocuments(old)
			return nil
		}
	}
	if !known || crd.version == "" {
		return nil
	}
	feed, err := c.source.addDocuments(kind, crd)
	if err != nil {
		return err
	}
	running := &documentFeed{kind: kind, crd: crd, done: make(chan struct{}), table: c.source.documentTable(kind)}
	feedCtx, cancel := context.WithCancel(ctx)
	running.cancel = cancel
	c.running[name] = running
	c.feeds.Go(func() {
		defer close(running.done)
		feed.run(feedCtx)
	})
	return nil
}

func (f *documentFeed) stop() {
	f.cancel()
	<-f.done
}

// get reads a definition. It returns the zero value if the definition does not exist. The version is empty if the API
// server does not serve the kind in a version that the parser supports.
func (c *crdReader) get(ctx context.Context, name string) (definition, error) {
	data, err := c.client.Get().Resource("customresourcedefinitions").Name(name).SetHeader("Accept", contentJSON).Timeout(crdTimeout).Do(ctx).Raw()
	if apierrors.IsNotFound(err) {
		return definition{}, nil
	}
	if err != nil {
		return definition{}, err
	}
	return parseDefinition(data)
}

func parseDefinition(data []byte) (definition, error) {
	var crd struct {
		Spec struct {
			Group string
			Names struct{ Kind, Plural string }
			// Versions has one element for each version of the kind.
			Versions []struct {
				Name            string
				Served, Storage bool
			}
		}
		Status struct {
			Conditions []struct{ Type, Status string }
		}
	}
	if err := json.Unmarshal(data, &crd); err != nil {
		return definition{}, err
	}
	d := definition{group: crd.Spec.Group, kind: crd.Spec.Names.Kind, plural: crd.Spec.Names.Plural}
	kind, known := istioKind(d.group, d.kind)
	established := slices.ContainsFunc(crd.Status.Conditions, func(c struct{ Type, Status string }) bool { return c.Type == "Established" && c.Status == "True" })
	if !known || !established {
		return d, nil
	}
	supported := kind.APIVersions()
	for _, v := range crd.Spec.Versions {
		if v.Served && slices.Contains(supported, d.group+"/"+v.Name) && (v.Storage || d.version == "") {
			d.version = v.Name
		}
	}
	return d, nil
}

// addDocuments adds a feed for the documents of an Istio kind. If the kind had a feed before, its documents stay in
// force until the new feed has received its first list.
func (s *Source) addDocuments(kind config.Kind, crd definition) (*feed, error) {
	client, err := s.cfg.Client.restJSON(schema.GroupVersion{Group: crd.group, Version: crd.version})
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	t := s.documents[kind]
	if t == nil {
		t = newDocumentTable(kind, s.cfg.Parser, s.apply)
		s.documents[kind] = t
	}
	s.mu.Unlock()
	list := &listWatch{client: client, resource: resource{
		name: crd.plural, encoding: rawJSON, convert: func(o runtime.Object) any { return parseDocument(s.cfg.Parser, kind, o) },
	}}
	f := newFeed(string(kind), list, t, s.selection, s.checkSynced)
	s.addFeed(f)
	s.log.Info("the control plane reads the documents of a kind", "kind", kind, "version", crd.group+"/"+crd.version)
	return f, nil
}

// removeDocuments removes the documents of a kind whose definition was removed.
func (s *Source) removeDocuments(f *documentFeed) {
	s.mu.Lock()
	delete(s.feeds, string(f.kind))
	delete(s.documents, f.kind)
	delete(s.failing, string(f.kind))
	s.mu.Unlock()
	f.table.replace(nil)
	s.log.Warn("the CustomResourceDefinition of a kind was removed, and its documents have no effect any more", "kind", f.kind)
}

func (s *Source) documentTable(kind config.Kind) *documentTable {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.documents[kind]
}
