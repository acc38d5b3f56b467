package kube

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

const (
	// pageSize is the number of objects per page if the API server does not stream lists.
	pageSize = 500
	// minRetry and maxRetry limit the backoff between failed requests. The backoff has a random part.
	minRetry, maxRetry = 200 * time.Millisecond, 15 * time.Second
)

// table stores the objects of one feed. The feed does not call its methods concurrently.
type table interface {
	// put adds or replaces an object.
	put(o *object)
	// remove removes an object, if the table has it.
	remove(o *object)
	// replace makes all the only objects of the table.
	replace(all []*object)
	// removeNamespaces removes the objects of the namespaces for which drop returns true.
	removeNamespaces(drop func(namespace string) bool)
	// size returns the number of objects and their approximate size in bytes.
	size() (objects, bytes int)
}

// feed reads the objects of one resource and passes them to a table. A failed request changes nothing. After a new list,
// the table changes only by the differences. feed implements cache.ReflectorStore.
type feed struct {
	kind string // for messages and metrics
	list *listWatch
	// selection decides which objects the table receives. It is nil if the resource has no namespaces.
	selection *selection

	mu      sync.Mutex
	table   table
	pending map[string]map[string]*object // objects whose namespace is not known yet, by namespace and name
	synced  chan struct{}                 // closed after the first list
	restart context.CancelFunc
	status  feedStatus

	onSync func() // called once, after the first list
	// onReport is called with the result of each request. It may be nil.
	onReport func(error)
}

// feedStatus is the state of a feed's connection to the API server.
type feedStatus struct {
	failure   string    // why the last request failed, or ""
	since     time.Time // time of the first failed request since the last successful one
	lastEvent time.Time
	lists     int
	failures  map[string]int // number of failed requests by operation (list, watch)
}

func newFeed(kind string, list *listWatch, t table, s *selection, onSync func()) *feed {
	f := &feed{kind: kind, list: list, table: t, selection: s, onSync: onSync, synced: make(chan struct{}), pending: map[string]map[string]*object{}}
	f.status.failures = map[string]int{}
	list.report = f.report
	return f
}

// run reads the resource until ctx ends.
func (f *feed) run(ctx context.Context) {
	ctx = klog.NewContext(ctx, logr.Discard()) // Health and the log of Source report failures
	for ctx.Err() == nil {
		readCtx, cancel := context.WithCancel(ctx)
		f.mu.Lock()
		f.restart = cancel
		f.mu.Unlock()
		logger := logr.Discard()
		reflector := cache.NewReflectorWithOptions(f.list, nil, f, cache.ReflectorOptions{
			Name: f.kind, TypeDescription: f.kind, Logger: &logger,
			Backoff: &wait.Backoff{Duration: minRetry, Cap: maxRetry, Steps: 20, Factor: 2, Jitter: 0.5},
		})
		reflector.WatchListPageSize = pageSize
		reflector.RunWithContext(readCtx)
		cancel()
	}
}

// relist reads all objects again. It does not block.
func (f *feed) relist() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.restart != nil {
		f.restart()
	}
}

// report records the result of a request.
func (f *feed) report(operation string, err error) {
	// An expired resource version is normal after a long interruption. The reflector then lists the objects again.
	if errors.Is(err, context.Canceled) || errors.Is(err, io.EOF) || apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		return
	}
	if f.onReport != nil {
		defer f.onReport(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil {
		f.status.failure, f.status.since = "", time.Time{}
		return
	}
	if f.status.since.IsZero() {
		f.status.since = time.Now()
	}
	f.status.failure = err.Error()
	f.status.failures[operation]++
}

// readStatus returns the state of the feed. missing reports whether the feed has not received its first list.
func (f *feed) readStatus() (status feedStatus, missing bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	status = f.status
	status.failures = map[string]int{}
	for operation, n := range f.status.failures {
		status.failures[operation] = n
	}
	return status, !isClosed(f.synced)
}

// awaitSync waits until the table has the first list. It returns false if ctx ends first.
func (f *feed) awaitSync(ctx context.Context) bool {
	select {
	case <-f.synced:
		return true
	case <-ctx.Done():
		return false
	}
}

func (f *feed) size() (objects, bytes int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.table.size()
}

// Add implements cache.ReflectorStore.
func (f *feed) Add(o any) error { return f.Update(o) }

// Update implements cache.ReflectorStore.
func (f *feed) Update(o any) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.status.lastEvent = time.Now()
	f.put(o.(*object))
	return nil
}

// Delete implements cache.ReflectorStore.
func (f *feed) Delete(o any) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.status.lastEvent = time.Now()
	f.remove(o.(*object))
	return nil
}

// Replace implements cache.ReflectorStore.
func (f *feed) Replace(list []any, _ string) error {
	f.mu.Lock()
	f.status.lastEvent = time.Now()
	f.status.lists++
	clear(f.pending)
	all := make([]*object, 0, len(list))
	for _, o := range list {
		if o := o.(*object); f.selects(o) {
			all = append(all, o)
		}
	}
	f.table.replace(all)
	first := !isClosed(f.synced)
	if first {
		close(f.synced)
	}
	f.mu.Unlock()
	if first {
		f.onSync()
	}
	return nil
}

// Resync implements cache.ReflectorStore.
func (f *feed) Resync() error { return nil }

func (f *feed) put(o *object) {
	if f.selects(o) {
		f.table.put(o)
	} else {
		f.table.remove(o)
	}
}

func (f *feed) remove(o *object) {
	delete(f.pending[o.namespace], o.name)
	f.table.remove(o)
}

// selects reports whether the table receives the object now. An object whose namespace is unknown waits in pending.
func (f *feed) selects(o *object) bool {
	if f.selection == nil || o.namespace == "" {
		return true
	}
	selected, known := f.selection.selects(o.namespace)
	if known {
		return selected
	}
	if f.pending[o.namespace] == nil {
		f.pending[o.namespace] = map[string]*object{}
	}
	f.pending[o.namespace][o.name] = o
	return false
}

// updateNamespaces applies changes of the selection: it removes the objects of namespaces that are not selected any
// more, and passes pending objects to the table.
func (f *feed) updateNamespaces() {
	if f.selection == nil { // also because the feed of namespaces calls this method while its mutex is locked
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.table.removeNamespaces(func(namespace string) bool {
		selected, known := f.selection.selects(namespace)
		return known && !selected
	})
	waiting := f.pending
	f.pending = map[string]map[string]*object{}
	for _, objects := range waiting {
		for _, o := range objects {
			f.put(o)
		}
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
