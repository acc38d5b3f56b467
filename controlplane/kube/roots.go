package kube

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	apitypes "k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

const (
	rootsMapName = "istio-ca-root-cert"
	rootsMapKey  = "root-cert.pem"
	rootsTimeout = 10 * time.Second
	// rootsInterval is how often the publisher compares the authority's roots with the published ones.
	rootsInterval = 2 * time.Second
	// maxOverwriteDelay is the maximum delay before the publisher writes a ConfigMap that another controller overwrites.
	maxOverwriteDelay = time.Minute
)

// namespacesWithoutRoots are the namespaces in which no pods run.
var namespacesWithoutRoots = map[string]bool{"kube-public": true, "kube-node-lease": true}

// rootsPublisher stores the mesh's root certificates in a ConfigMap of each namespace, from which each agent reads them.
// Each replica creates a missing ConfigMap at once. Only the leader changes an existing one.
type rootsPublisher struct {
	rest     rest.Interface
	isLeader func() bool
	log      *slog.Logger
	queue    workqueue.TypedRateLimitingInterface[string] // names of namespaces; nil before Run

	mu         sync.Mutex
	roots      []byte
	namespaces map[string]bool          // by name; true if a ConfigMap is needed
	maps       map[string]publishedMap  // by namespace
	writes     map[string]overwrittenBy // by namespace
	synced     bool                     // the ConfigMaps were listed
}

// publishedMap is a ConfigMap in the cluster.
type publishedMap struct {
	version string
	roots   string
}

// overwrittenBy is the history of the leader's writes of one ConfigMap.
type overwrittenBy struct {
	last  time.Time
	delay time.Duration // minimum time until the next write
}

func newRootsPublisher(client rest.Interface, isLeader func() bool, log *slog.Logger) *rootsPublisher {
	return &rootsPublisher{
		rest: client, isLeader: isLeader, log: log,
		namespaces: map[string]bool{}, maps: map[string]publishedMap{}, writes: map[string]overwrittenBy{},
	}
}

// Run publishes the roots that roots returns, until ctx ends.
func (p *rootsPublisher) Run(ctx context.Context, roots func() []byte) {
	// The queue exists before a namespace is known. Its creation starts goroutines, which end in ShutDown.
	p.queue = workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[string](20*time.Millisecond, time.Minute))
	p.setRoots(roots())
	var background sync.WaitGroup
	defer background.Wait()
	defer p.queue.ShutDown()
	background.Go(func() {
		p.watch(ctx, "namespaces", fields.Everything(), &corev1.Namespace{}, &eventStore{set: p.setNamespace, remove: p.removeNamespace, list: p.listNamespaces})
	})
	background.Go(func() {
		p.watch(ctx, "configmaps", fields.OneTermEqualSelector("metadata.name", rootsMapName), &corev1.ConfigMap{},
			&eventStore{set: p.setMap, remove: p.removeMap, list: p.listMaps, replaced: p.setSynced})
	})
	background.Go(func() {
		for p.publishNext(ctx) {
		}
	})
	ticker := time.NewTicker(rootsInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			p.setRoots(roots())
		}
	}
}

func (p *rootsPublisher) watch(ctx context.Context, resource string, selector fields.Selector, kind any, store *eventStore) {
	lists := cache.NewListWatchFromClient(p.rest, resource, metav1.NamespaceAll, selector)
	cache.NewReflectorWithOptions(lists, kind, store, cache.ReflectorOptions{Name: "roots: " + resource}).RunWithContext(ctx)
}

// setRoots sets the roots to publish.
func (p *rootsPublisher) setRoots(roots []byte) {
	p.mu.Lock()
	changed := !bytes.Equal(roots, p.roots)
	p.roots = roots
	p.mu.Unlock()
	if changed {
		p.PublishAll()
	}
}

// PublishAll checks the ConfigMaps of all namespaces. The caller calls it when the leader changes.
func (p *rootsPublisher) PublishAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name := range p.namespaces {
		p.queue.Add(name)
	}
}

func (p *rootsPublisher) setNamespace(o metav1.Object) {
	name := o.GetName()
	p.mu.Lock()
	p.namespaces[name] = o.GetDeletionTimestamp() == nil && !namespacesWithoutRoots[name]
	p.mu.Unlock()
	p.queue.Add(name)
}

func (p *rootsPublisher) removeNamespace(_, name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.namespaces, name)
	delete(p.writes, name)
}

func (p *rootsPublisher) listNamespaces() []eventKey {
	p.mu.Lock()
	defer p.mu.Unlock()
	var names []eventKey
	for name := range p.namespaces {
		names = append(names, eventKey{name: name})
	}
	return names
}

func (p *rootsPublisher) setMap(o metav1.Object) {
	found, ok := o.(*corev1.ConfigMap)
	if !ok || found.Name != rootsMapName {
		return
	}
	p.mu.Lock()
	p.maps[found.Namespace] = publishedMap{version: found.ResourceVersion, roots: found.Data[rootsMapKey]}
	p.mu.Unlock()
	p.queue.Add(found.Namespace)
}

func (p *rootsPublisher) removeMap(namespace, _ string) {
	p.mu.Lock()
	delete(p.maps, namespace)
	p.mu.Unlock()
	p.queue.Add(namespace)
}

func (p *rootsPublisher) listMaps() []eventKey {
	p.mu.Lock()
	defer p.mu.Unlock()
	var names []eventKey
	for namespace := range p.maps {
		names = append(names, eventKey{namespace, rootsMapName})
	}
	return names
}

// setSynced records that the existing ConfigMaps are known. Before, the publisher would try to create each of them.
func (p *rootsPublisher) setSynced() {
	p.mu.Lock()
	p.synced = true
	p.mu.Unlock()
	p.PublishAll()
}

// publishNext publishes the roots in the next namespace of the queue. It returns false when the queue is shut down.
func (p *rootsPublisher) publishNext(ctx context.Context) bool {
	namespace, shutdown := p.queue.Get()
	if shutdown {
		return false
	}
	defer p.queue.Done(namespace)
	wait, err := p.publish(ctx, namespace)
	switch {
	case err != nil && ctx.Err() == nil:
		if p.queue.NumRequeues(namespace) == 0 {
			p.log.Warn("publishing the mesh's root certificates failed; pods of this namespace cannot start", "configMap", namespace+"/"+rootsMapName, "error", err)
		}
		p.queue.AddRateLimited(namespace)
	case wait > 0:
		p.queue.AddAfter(namespace, wait)
	default:
		p.queue.Forget(namespace)
	}
	return true
}

// publish creates or updates the ConfigMap of a namespace if necessary. If wait is positive, the caller calls publish
// again after that time.
func (p *rootsPublisher) publish(ctx context.Context, namespace string) (wait time.Duration, err error) {
	p.mu.Lock()
	roots, needed, synced := string(p.roots), p.namespaces[namespace], p.synced
	stored, exists := p.maps[namespace]
	p.mu.Unlock()
	if !needed || !synced || exists && stored.roots == roots {
		return 0, nil
	}
	ctx, cancel := context.WithTimeout(ctx, rootsTimeout)
	defer cancel()
	if !exists {
		return 0, p.create(ctx, namespace, roots)
	}
	if !p.isLeader() {
		return 0, nil
	}
	if wait := p.delayWrite(namespace); wait > 0 {
		return wait, nil
	}
	return 0, p.update(ctx, namespace, stored.version, roots)
}

// create creates the ConfigMap with the labels of Istio.
func (p *rootsPublisher) create(ctx context.Context, namespace, roots string) error {
	created := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: rootsMapName, Namespace: namespace, Labels: map[string]string{"istio.io/config": "true"}},
		Data:       map[string]string{rootsMapKey: roots},
	}
	err := p.rest.Post().Namespace(namespace).Resource("configmaps").Body(created).Do(ctx).Error()
	if apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return nil // the watch reports the ConfigMap, or the end of the namespace
	}
	return err
}

// update replaces the roots of the ConfigMap with the resource version. It does not change other keys and labels.
func (p *rootsPublisher) update(ctx context.Context, namespace, version, roots string) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]string{"resourceVersion": version}, "data": map[string]string{rootsMapKey: roots},
	})
	if err != nil {
		return fmt.Errorf("encoding the roots: %w", err)
	}
	err = p.rest.Patch(apitypes.MergePatchType).Namespace(namespace).Resource("configmaps").Name(rootsMapName).Body(patch).Do(ctx).Error()
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil // the watch reports the change
	}
	return err
}

// delayWrite returns how long the leader must wait before it writes the ConfigMap of a namespace. If it returns 0, it
// records a write. The delay grows while another controller overwrites the ConfigMap.
func (p *rootsPublisher) delayWrite(namespace string) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	now, write := time.Now(), p.writes[namespace]
	if wait := write.last.Add(write.delay).Sub(now); wait > 0 {
		return wait
	}
	if now.Sub(write.last) > 2*maxOverwriteDelay {
		write.delay = 0
	} else {
		write.delay = min(max(2*write.delay, time.Second), maxOverwriteDelay)
		if write.delay == maxOverwriteDelay {
			p.log.Warn("another controller overwrites the mesh's root certificates; two control planes must have the same certificate authority",
				"configMap", namespace+"/"+rootsMapName)
		}
	}
	write.last = now
	p.writes[namespace] = write
	return 0
}
