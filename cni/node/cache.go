package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pilotfish-mesh/pilotfish/cni/agentapi"
	"github.com/pilotfish-mesh/pilotfish/cni/capture"
	"github.com/pilotfish-mesh/pilotfish/cni/kube"
	"github.com/pilotfish-mesh/pilotfish/internal/backoff"
	"github.com/pilotfish-mesh/pilotfish/internal/health"
)

const (
	// watchFor is how long one watch request may last.
	watchFor = 10 * time.Minute
	// minWatch is the minimum duration of a successful watch. After a shorter watch the cache waits for a backoff delay.
	minWatch = 5 * time.Second
	// maxStuck is the number of consecutive watches that fail at the same resource version before the cache lists all
	// pods again.
	maxStuck = 3
)

// ErrNoSuchPod reports that the pod does not exist, or that the pod of this name has another UID.
var ErrNoSuchPod = errors.New("no such pod")

// API is the part of the Kubernetes API that the cache uses. *kube.Client implements it.
type API interface {
	Pod(ctx context.Context, namespace, name string) (*agentapi.Pod, error)
	Pods(ctx context.Context, node string) ([]agentapi.Pod, string, error)
	Watch(ctx context.Context, node, version string, maxDuration time.Duration, each func(kube.Event)) (string, error)
}

// CacheConfig is the configuration of a Cache.
type CacheConfig struct {
	API  API
	Node string
	// MinWait and MaxWait are the limits of the backoff; 0: 500 ms and 30 s.
	MinWait, MaxWait time.Duration
	// Changed is called after each change of a pod, in order, with the cached pod. It must not block. It may be nil.
	Changed func(kube.Event)
	Logger  *slog.Logger
}

// Cache caches the pods of one node. While the API server is unavailable, it serves the pods that it has cached. Its
// methods may be called concurrently.
type Cache struct {
	config CacheConfig

	mu     sync.Mutex
	pods   map[string]*agentapi.Pod // by namespace/name; pods are immutable and only replaced
	synced bool                     // whether the pods were listed at least once
	lost   time.Time                // start of the current interruption of the watch; zero while the watch works
	why    error                    // cause of the interruption
}

// NewCache returns an empty cache.
func NewCache(c CacheConfig) *Cache {
	if c.MinWait == 0 {
		c.MinWait, c.MaxWait = 500*time.Millisecond, 30*time.Second
	}
	return &Cache{config: c, pods: map[string]*agentapi.Pod{}, lost: time.Now(), why: errors.New("the node's pods have not been listed yet")}
}

// Run lists and watches the node's pods until the context ends.
func (c *Cache) Run(ctx context.Context) error {
	retry := &backoff.Backoff{Min: c.config.MinWait, Max: c.config.MaxWait}
	version, stuck := "", 0
	for ctx.Err() == nil {
		began, from := time.Now(), version
		var err error
		if version, err = c.follow(ctx, version); ctx.Err() != nil {
			break
		}
		if err != nil {
			c.lose(err)
			// A watch fails repeatedly at one version if the next event cannot be decoded, or if etcd was restored from
			// a backup.
			if stuck++; version != from {
				stuck = 0
			}
			if stuck == maxStuck {
				version, stuck = "", 0
			}
		} else if time.Since(began) > minWatch {
			retry.Reset()
			continue
		}
		backoff.Sleep(ctx, retry.Next())
	}
	return ctx.Err()
}

// follow lists the pods if version is empty, and then sends one watch request. It returns the resource version at which
// the next watch resumes, or "" if the pods must be listed again.
func (c *Cache) follow(ctx context.Context, version string) (string, error) {
	if version == "" {
		pods, listed, err := c.config.API.Pods(ctx, c.config.Node)
		if err != nil {
			return "", err
		}
		version = listed
		c.replace(pods)
	}
	next, err := c.config.API.Watch(ctx, c.config.Node, version, watchFor, func(e kube.Event) {
		c.found()
		c.apply(e)
	})
	switch {
	case kube.IsExpired(err):
		return "", nil // the API server no longer has the events since version, so the pods must be listed again
	case err != nil:
		return next, err
	}
	c.found()
	return next, nil
}

// lose records that the watch is interrupted. It logs the cause if it is a new one.
func (c *Cache) lose(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lost.IsZero() {
		c.lost = time.Now()
	}
	if c.why == nil || c.why.Error() != err.Error() {
		c.config.Logger.Warn("the watch of the node's pods is interrupted; cached pods are still served", "error", err)
	}
	c.why = err
}

// found records that the watch works.
func (c *Cache) found() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.lost.IsZero() {
		c.config.Logger.Info("the node's pods are watched", "pods", len(c.pods))
	}
	c.lost, c.why = time.Time{}, nil
}

// replace replaces all cached pods with a list and calls Changed for each difference.
func (c *Cache) replace(pods []agentapi.Pod) {
	fresh := make(map[string]*agentapi.Pod, len(pods))
	for i := range pods {
		p := trimPod(&pods[i])
		fresh[key(p)] = p
	}
	c.mu.Lock()
	old := c.pods
	c.pods, c.synced = fresh, true
	c.mu.Unlock()
	c.found()
	for _, name := range slices.Sorted(maps.Keys(old)) {
		if now := fresh[name]; now == nil || now.Metadata.UID != old[name].Metadata.UID {
			c.notifyChanged(kube.Event{Type: kube.Deleted, Pod: old[name]})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(fresh)) {
		before := old[name]
		switch {
		case before == nil || before.Metadata.UID != fresh[name].Metadata.UID:
			c.notifyChanged(kube.Event{Type: kube.Added, Pod: fresh[name]})
		case before.Metadata.ResourceVersion != fresh[name].Metadata.ResourceVersion:
			c.notifyChanged(kube.Event{Type: kube.Modified, Pod: fresh[name]})
		}
	}
}

func (c *Cache) apply(e kube.Event) {
	p := trimPod(e.Pod)
	c.mu.Lock()
	known := c.pods[key(p)]
	switch {
	case e.Type != kube.Deleted:
		c.pods[key(p)] = p
	case known != nil && known.Metadata.UID == p.Metadata.UID: // otherwise the cached pod is a newer one with this name
		delete(c.pods, key(p))
	}
	c.mu.Unlock()
	c.notifyChanged(kube.Event{Type: e.Type, Pod: p})
}

func (c *Cache) notifyChanged(e kube.Event) {
	if c.config.Changed != nil {
		c.config.Changed(e)
	}
}

// Pod returns the pod with this namespace, name and UID. An empty UID, from an old container runtime, matches any pod.
// Pod queries the API server for a pod that is not cached, because ADD may run before the watch event arrives. The
// caller must not change the result.
func (c *Cache) Pod(ctx context.Context, namespace, name, uid string) (*agentapi.Pod, error) {
	c.mu.Lock()
	known := c.pods[namespace+"/"+name]
	c.mu.Unlock()
	// Without a UID, the cached pod may be an earlier pod of the same name. In this case, only the API server has the
	// current pod.
	if known != nil && uid != "" && capture.HasUID(known, uid) {
		return known, nil
	}
	current, err := c.config.API.Pod(ctx, namespace, name)
	switch {
	case kube.IsNotFound(err):
		return nil, fmt.Errorf("%w: %s/%s", ErrNoSuchPod, namespace, name)
	case err != nil:
		return nil, err
	case !capture.HasUID(current, uid):
		return nil, fmt.Errorf("%w: %s/%s with UID %s; the pod of this name has another UID", ErrNoSuchPod, namespace, name, uid)
	}
	return trimPod(current), nil
}

// Pods returns the cached pods, sorted by name. The caller must not change them.
func (c *Cache) Pods() []*agentapi.Pod {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]*agentapi.Pod, 0, len(c.pods))
	for _, name := range slices.Sorted(maps.Keys(c.pods)) {
		all = append(all, c.pods[name])
	}
	return all
}

// Health returns OK once the node's pods were listed. While the watch is interrupted, the condition contains the reason
// but remains OK, because the cached pods are still served.
func (c *Cache) Health() health.Condition {
	c.mu.Lock()
	defer c.mu.Unlock()
	condition := health.Condition{OK: c.synced, Since: c.lost}
	if c.why != nil {
		condition.Reason = "the node's pods are not watched: " + c.why.Error()
		condition.Remedy = "check that the API server is reachable from this node, and that the service account may list and watch pods"
	}
	return condition
}

// Lag returns the duration of the current interruption of the watch, or 0.
func (c *Cache) Lag() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lost.IsZero() {
		return 0
	}
	return time.Since(c.lost)
}

func key(p *agentapi.Pod) string { return p.Metadata.Namespace + "/" + p.Metadata.Name }

// trimPod returns a copy of the pod without fields that redirection does not need, to save memory. It removes the
// environment of application containers, which may contain secrets, and unrelated annotations, which may be large.
func trimPod(p *agentapi.Pod) *agentapi.Pod {
	small := *p
	small.Metadata.Annotations = make(map[string]string, len(p.Metadata.Annotations))
	for name, value := range p.Metadata.Annotations {
		if strings.Contains(name, "istio.io/") || strings.Contains(name, "pilotfish") || strings.HasPrefix(name, "kubernetes.io/config.") {
			small.Metadata.Annotations[name] = value
		}
	}
	small.Spec.Containers = trimContainers(p.Spec.Containers)
	small.Spec.InitContainers = trimContainers(p.Spec.InitContainers)
	return &small
}

// trimContainers returns a copy of the containers without the environment and arguments of application containers.
func trimContainers(containers []agentapi.Container) []agentapi.Container {
	small := slices.Clone(containers)
	for i := range small {
		if !strings.HasPrefix(small[i].Name, "istio-") {
			small[i].Env, small[i].Args = nil, nil
		}
	}
	return small
}
