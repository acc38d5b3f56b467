package kube

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// Times of an election, as in Kubernetes' own components. A leader renews its Lease every renewInterval, and stops to
// lead renewDeadline after the last renewal. Another replica takes over if the Lease was not renewed for leaseDuration.
const (
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	renewInterval = 2 * time.Second
	leaseTimeout  = 5 * time.Second
)

// election elects one leader among the replicas of a control plane by a Lease. Each write is a compare-and-swap on the
// Lease's resource version. A replica compares no clocks of other machines: it measures itself how long a Lease is
// unchanged. For a moment, two replicas may consider themselves the leader, so the writes of a leader must be
// compare-and-swap, too.
type election struct {
	rest            rest.Interface
	namespace, name string
	identity        string // of this replica
	log             *slog.Logger
	interval        time.Duration
	now             func() time.Time
	// changed is called when this replica starts or stops to lead.
	changed func()

	mu      sync.Mutex
	until   time.Time // this replica leads until then
	leading bool      // last state for which changed was called

	observed   string // resource version of the Lease of another replica
	observedAt time.Time
}

// IsLeader reports whether this replica leads.
func (e *election) IsLeader() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.now().Before(e.until)
}

// Run takes part in the election until ctx ends, and then releases the Lease.
func (e *election) Run(ctx context.Context) {
	ticker := time.NewTicker(e.interval)
	defer ticker.Stop()
	failing := false
	for {
		err := e.try(ctx)
		if err != nil && !failing && ctx.Err() == nil {
			e.log.Warn("the election of a leader among the replicas of the control plane failed", "lease", e.namespace+"/"+e.name, "error", err)
		}
		failing = err != nil
		e.report()
		select {
		case <-ctx.Done():
			e.release()
			e.report()
			return
		case <-ticker.C:
		}
	}
}

// report calls changed if this replica has started or stopped to lead.
func (e *election) report() {
	leads := e.IsLeader()
	e.mu.Lock()
	changed := leads != e.leading
	e.leading = leads
	e.mu.Unlock()
	if changed {
		e.log.Info("leadership of this replica changed", "leader", leads, "lease", e.namespace+"/"+e.name)
		e.changed()
	}
}

// try acquires or renews the Lease if possible.
func (e *election) try(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, leaseTimeout)
	defer cancel()
	started := e.now()
	lease := &coordinationv1.Lease{}
	err := e.rest.Get().Namespace(e.namespace).Resource("leases").Name(e.name).Do(ctx).Into(lease)
	switch {
	case apierrors.IsNotFound(err):
		lease = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: e.name, Namespace: e.namespace}}
		e.claim(&lease.Spec)
		err = e.rest.Post().Namespace(e.namespace).Resource("leases").Body(lease).Do(ctx).Error()
	case err != nil:
		return fmt.Errorf("reading the Lease: %w", err)
	case !e.mayClaim(lease):
		return nil
	default:
		e.claim(&lease.Spec)
		err = e.rest.Put().Namespace(e.namespace).Resource("leases").Name(e.name).Body(lease).Do(ctx).Error()
	}
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		return nil // another replica was faster
	}
	if err != nil {
		return fmt.Errorf("writing the Lease: %w", err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.until = started.Add(renewDeadline)
	return nil
}

// mayClaim reports whether this replica holds the Lease, or no replica renews it.
func (e *election) mayClaim(lease *coordinationv1.Lease) bool {
	holder := lease.Spec.HolderIdentity
	if holder == nil || *holder == "" || *holder == e.identity {
		e.observed = ""
		return true
	}
	if lease.ResourceVersion != e.observed {
		e.observed, e.observedAt = lease.ResourceVersion, e.now()
		return false
	}
	duration := leaseDuration
	if seconds := lease.Spec.LeaseDurationSeconds; seconds != nil && *seconds > 0 {
		duration = time.Duration(*seconds) * time.Second
	}
	return e.now().Sub(e.observedAt) >= duration
}

// claim changes a Lease so that this replica holds it.
func (e *election) claim(spec *coordinationv1.LeaseSpec) {
	now := metav1.NewMicroTime(e.now())
	if spec.HolderIdentity == nil || *spec.HolderIdentity != e.identity {
		transitions := int32(0)
		if spec.LeaseTransitions != nil {
			transitions = *spec.LeaseTransitions + 1
		}
		holder := e.identity
		spec.HolderIdentity, spec.AcquireTime, spec.LeaseTransitions = &holder, &now, &transitions
	}
	seconds := int32(leaseDuration / time.Second)
	spec.LeaseDurationSeconds, spec.RenewTime = &seconds, &now
}

// release ends the leadership of this replica, so that another replica need not wait.
func (e *election) release() {
	led := e.IsLeader()
	e.mu.Lock()
	e.until = time.Time{}
	e.mu.Unlock()
	if !led {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), leaseTimeout)
	defer cancel()
	lease := &coordinationv1.Lease{}
	err := e.rest.Get().Namespace(e.namespace).Resource("leases").Name(e.name).Do(ctx).Into(lease)
	if err == nil && lease.Spec.HolderIdentity != nil && *lease.Spec.HolderIdentity == e.identity {
		none := ""
		lease.Spec.HolderIdentity = &none
		err = e.rest.Put().Namespace(e.namespace).Resource("leases").Name(e.name).Body(lease).Do(ctx).Error()
	}
	if err != nil && !apierrors.IsConflict(err) {
		e.log.Info("releasing the Lease failed; another replica leads when it expires", "lease", e.namespace+"/"+e.name, "error", err)
	}
}
