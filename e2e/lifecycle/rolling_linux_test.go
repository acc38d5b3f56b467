package lifecycle

import (
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

const (
	replicas     = 5
	maxParallel  = 5
	replacements = 50
	// spread is the delay until clients know that a pod is about to end. As in a cluster, the pod is notified first.
	spread = 200 * time.Millisecond
)

// replica is a pod with its application, as one of a deployment's.
type replica struct {
	*pod
	application *application
}

func newReplica(t testing.TB, p *plane, envoy string, env map[string]string) *replica {
	t.Helper()
	pod := newPod(t, p, "shop").set(map[string]string{"ENVOY_PATH": envoy, "PRE_DRAIN_DELAY": "500ms"}).set(env)
	return &replica{pod: pod, application: startApplication(t, pod)}
}

// deployment is some replicas under load, which can be replaced.
type deployment struct {
	t       testing.TB
	plane   *plane
	targets endpoints
	envoys  []string
	env     map[string]string
	end     func(*replica) // ends a replica
	made    int
	running []*replica
}

func (d *deployment) create(n int) []*replica {
	d.t.Helper()
	var all []*replica
	for range n {
		r := newReplica(d.t, d.plane, d.envoys[d.made%len(d.envoys)], d.env)
		d.made++
		r.start(d.t)
		all = append(all, r)
	}
	for _, r := range all {
		r.waitReady(d.t)
		d.plane.join(r.pod)
	}
	d.running = append(d.running, all...)
	d.publish()
	return all
}

func (d *deployment) publish() {
	var pods []*pod
	for _, r := range d.running {
		pods = append(pods, r.pod)
	}
	d.targets.set(pods)
}

// replace creates new replicas and ends the oldest ones, as a rolling update does: the pods receive SIGTERM before the
// clients' lists of endpoints change.
func (d *deployment) replace(n int) {
	d.t.Helper()
	old := d.running[:n]
	d.create(n)
	time.Sleep(spread) // the new ones are known everywhere
	d.running = d.running[n:]
	var ended sync.WaitGroup
	for _, r := range old {
		d.end(r)
		ended.Go(func() {
			time.Sleep(spread)
			r.application.stopping.Store(true)
			<-r.ended
			r.application.stop()
		})
	}
	time.Sleep(spread)
	for _, r := range old {
		d.plane.leave(r.pod)
	}
	d.publish()
	for _, r := range old {
		if code := r.wait(d.t, 30*time.Second); code != 0 {
			d.t.Errorf("%s ended with code %d", r.name, code)
		}
	}
	ended.Wait()
}

func newDeployment(t testing.TB, end func(*replica)) (*deployment, *pod) {
	t.Helper()
	p := startPlane(t)
	d := &deployment{t: t, plane: p, end: end}
	for _, v := range testenv.EnvoyVersions() {
		d.envoys = append(d.envoys, testenv.EnvoyOf(t, v))
	}
	d.create(replicas)
	client := newPod(t, p, "client")
	client.set(map[string]string{"ISTIO_META_UPSTREAM_LISTENERS": "shop.default.svc.cluster.local:8083=" + client.upstream()})
	client.start(t).waitReady(t)
	return d, client
}

// TestRollingReplacementsLoseNoRequest also shows that there is something to lose: the same pods, ended without a
// drain, lose requests.
func TestRollingReplacementsLoseNoRequest(t *testing.T) {
	d, client := newDeployment(t, func(r *replica) { r.signal(t, syscall.SIGTERM) })
	l := startLoad(t, client, &d.targets)
	for done := 0; done < replacements; done += maxParallel {
		d.replace(maxParallel)
	}
	served, lost := l.end()
	if n, text := total(lost); n > 0 {
		t.Errorf("%d requests were lost in %d replacements:%s", n, replacements, text)
	}
	for kind, n := range served {
		if n < replacements/2 {
			t.Errorf("the load proves little: only %d requests of %s", n, kind)
		}
	}
	t.Logf("served in %d replacements: %v", replacements, served)

	d.end = func(r *replica) {
		if out, err := r.command(t, "request", "--debug-port=15020", "POST", "quitquitquit").CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	}
	control := startLoad(t, client, &d.targets)
	d.replace(maxParallel)
	served, lost = control.end()
	n, text := total(lost)
	if n == 0 {
		t.Error("nothing was lost without a drain either: the load proves nothing")
	}
	t.Logf("without a drain %d requests were lost in %d replacements, %v were served:%s", n, maxParallel, served, text)
}
