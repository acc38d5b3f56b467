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
	"github.com/pilotfish-mesh/pilotfish/internal/dial"
	"github.com/pilotfish-mesh/pilotfish/internal/health"
)

const (
	// watchFor is how long one watch lasts at most.
	watchFor = 10 * time.Minute
	// shortestWatch is what a watch lasts that was any good: one that ends sooner is followed by a wait.
	shortestWatch = 5 * time.Second
	// mostStuck watches may fail from the same version before everything is listed again.
	mostStuck = 3
)

// ErrNoSuchPod says that the API server knows no such pod, or another one of its name.
var ErrNoSuchPod = errors.New("there is no such pod")

// API is what the cache asks of Kubernetes; *kube.Client is one.
type API interface {
	Pod(ctx context.Context, namespace, name string) (*agentapi.Pod, error)
	Pods(ctx context.Context, node string) ([]agentapi.Pod, string, error)
	Watch(ctx context.Context, node, version string, most time.Duration, each func(kube.Event)) (string, error)
}

// CacheConfig is what a Cache needs.
type CacheConfig struct {
	API  API
	Node string
	// MinWait and MaxWait are between attempts to reach the API server; 0: 500 ms and 30 s.
	MinWait, MaxWait time.Duration
	// Changed is called after each change, in order, with what is known now of the pod; nil for none. It must not block.
	Changed func(kube.Event)
	Logger  *slog.Logger
}

// Cache knows the pods of one node. What it knows outlives the API server's absence. Its methods may be called concurrently.
type Cache struct {
	config CacheConfig

	mu     sync.Mutex
	pods   map[string]*agentapi.Pod // by namespace/name; never changed, only replaced
	synced bool                     // everything was listed once
	lost   time.Time                // since when it is not followed; zero while it is
	why    error
}

// NewCache makes an empty cache.
func NewCache(c CacheConfig) *Cache {
	if c.MinWait == 0 {
		c.MinWait, c.MaxWait = 500*time.Millisecond, 30*time.Second
	}
	return &Cache{config: c, pods: map[string]*agentapi.Pod{}, lost: time.Now(), why: errors.New("the pods were not listed yet")}
}

// Run follows the node's pods until the context ends.
func (c *Cache) Run(ctx context.Context) error {
	backoff := &dial.Backoff{Min: c.config.MinWait, Max: c.config.MaxWait}
	version, stuck := "", 0
	for ctx.Err() == nil {
		began, from := time.Now(), version
		var err error
		if version, err = c.follow(ctx, version); ctx.Err() != nil {
			break
		}
		if err != nil {
			c.lose(err)
			// What comes next may be what cannot be read, or the store may be an older one that was put back.
			if stuck++; version != from {
				stuck = 0
			}
			if stuck == mostStuck {
				version, stuck = "", 0
			}
		} else if time.Since(began) > shortestWatch {
			backoff.Reset()
			continue
		}
		select {
		case <-ctx.Done():
		case <-time.After(backoff.Next()):
		}
	}
	return ctx.Err()
}

// follow lists, unless a version is known to watch on from, and watches once. It gives the version to go on from, which is
// "" when all has to be listed again.
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
		return "", nil // nothing is wrong: it was away for long
	case err != nil:
		return next, err
	}
	c.found()
	return next, nil
}

func (c *Cache) lose(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lost.IsZero() {
		c.lost = time.Now()
	}
	if c.why == nil || c.why.Error() != err.Error() {
		c.config.Logger.Warn("the node's pods are not followed now; what was known goes on being served", "error", err)
	}
	c.why = err
}

func (c *Cache) found() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.lost.IsZero() {
		c.config.Logger.Info("the node's pods are followed", "pods", len(c.pods))
	}
	c.lost, c.why = time.Time{}, nil
}

// replace takes a whole list, and tells the differences.
func (c *Cache) replace(pods []agentapi.Pod) {
	fresh := make(map[string]*agentapi.Pod, len(pods))
	for i := range pods {
		p := slim(&pods[i])
		fresh[key(p)] = p
	}
	c.mu.Lock()
	old := c.pods
	c.pods, c.synced = fresh, true
	c.mu.Unlock()
	c.found()
	for _, name := range slices.Sorted(maps.Keys(old)) {
		if now := fresh[name]; now == nil || now.Metadata.UID != old[name].Metadata.UID {
			c.tell(kube.Event{Type: kube.Deleted, Pod: old[name]})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(fresh)) {
		before := old[name]
		switch {
		case before == nil || before.Metadata.UID != fresh[name].Metadata.UID:
			c.tell(kube.Event{Type: kube.Added, Pod: fresh[name]})
		case before.Metadata.ResourceVersion != fresh[name].Metadata.ResourceVersion:
			c.tell(kube.Event{Type: kube.Modified, Pod: fresh[name]})
		}
	}
}

func (c *Cache) apply(e kube.Event) {
	p := slim(e.Pod)
	c.mu.Lock()
	known := c.pods[key(p)]
	switch {
	case e.Type != kube.Deleted:
		c.pods[key(p)] = p
	case known != nil && known.Metadata.UID == p.Metadata.UID: // else a new one has taken the name
		delete(c.pods, key(p))
	}
	c.mu.Unlock()
	c.tell(kube.Event{Type: e.Type, Pod: p})
}

func (c *Cache) tell(e kube.Event) {
	if c.config.Changed != nil {
		c.config.Changed(e)
	}
}

// Pod gives the pod that the container runtime means; an empty UID, of an old runtime, is that of any. What the cache does
// not know is asked of the API server, since a pod's sandbox may be made before its event is here. The answer must not be
// changed.
func (c *Cache) Pod(ctx context.Context, namespace, name, uid string) (*agentapi.Pod, error) {
	c.mu.Lock()
	known := c.pods[namespace+"/"+name]
	c.mu.Unlock()
	// Without a UID nobody can say whether the one that is known is the one that is meant, or one before it, without a
	// sidecar: then the API server's word is needed.
	if known != nil && uid != "" && capture.HasUID(known, uid) {
		return known, nil
	}
	asked, err := c.config.API.Pod(ctx, namespace, name)
	switch {
	case kube.IsNotFound(err):
		return nil, fmt.Errorf("%w as %s/%s", ErrNoSuchPod, namespace, name)
	case err != nil:
		return nil, err
	case !capture.HasUID(asked, uid):
		return nil, fmt.Errorf("%w as %s/%s of UID %s: it has another UID now", ErrNoSuchPod, namespace, name, uid)
	}
	return slim(asked), nil
}

// Pods gives all that are known now, in the order of their names. They must not be changed.
func (c *Cache) Pods() []*agentapi.Pod {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]*agentapi.Pod, 0, len(c.pods))
	for _, name := range slices.Sorted(maps.Keys(c.pods)) {
		all = append(all, c.pods[name])
	}
	return all
}

// Health is well once all pods were listed; that they are not followed any more is worth telling and no reason to turn
// callers away, as the API server would have to be asked by them, too.
func (c *Cache) Health() health.Condition {
	c.mu.Lock()
	defer c.mu.Unlock()
	condition := health.Condition{OK: c.synced, Since: c.lost}
	if c.why != nil {
		condition.Reason = "the node's pods are not followed: " + c.why.Error()
		condition.Remedy = "see whether the API server can be reached from this node, and whether the service account may list and watch pods"
	}
	return condition
}

// Lag is how long the API server was not heard of; 0 while it is.
func (c *Cache) Lag() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lost.IsZero() {
		return 0
	}
	return time.Since(c.lost)
}

func key(p *agentapi.Pod) string { return p.Metadata.Namespace + "/" + p.Metadata.Name }

// slim leaves out what bears on nobody's decision, so that a full node's pods are small: environments of the application's
// containers, which may hold secrets, and annotations of others, of which some hold whole manifests.
func slim(p *agentapi.Pod) *agentapi.Pod {
	small := *p
	small.Metadata.Annotations = make(map[string]string, len(p.Metadata.Annotations))
	for name, value := range p.Metadata.Annotations {
		if strings.Contains(name, "istio.io/") || strings.Contains(name, "pilotfish") || strings.HasPrefix(name, "kubernetes.io/config.") {
			small.Metadata.Annotations[name] = value
		}
	}
	small.Spec.Containers = slimContainers(p.Spec.Containers)
	small.Spec.InitContainers = slimContainers(p.Spec.InitContainers)
	return &small
}

func slimContainers(containers []agentapi.Container) []agentapi.Container {
	small := slices.Clone(containers)
	for i := range small {
		if !strings.HasPrefix(small[i].Name, "istio-") {
			small[i].Env, small[i].Args = nil, nil
		}
	}
	return small
}
