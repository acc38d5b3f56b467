package check

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/pilotfish-mesh/pilotfish/mesh"
)

// envoyKilled kills the Envoy of details, and asks for pages until details is there again: served by another process.
func envoyKilled(ctx context.Context, t *Target) (string, error) {
	const workload = "details-v1"
	i, err := t.instance(ctx, workload)
	if err != nil {
		return "", err
	}
	if i.EnvoyPID == 0 {
		return "", fmt.Errorf("the mesh does not know the process id of the Envoy of %s", workload)
	}
	process, err := os.FindProcess(i.EnvoyPID)
	if err != nil {
		return "", err
	}
	if err := process.Kill(); err != nil {
		return "", fmt.Errorf("killing Envoy %d of %s: %w", i.EnvoyPID, workload, err)
	}
	killed := time.Now()
	back, pages, without, err := t.pagesUntilBack(ctx, workload, i.EnvoyPID)
	if err != nil {
		return "", err
	}
	now, err := t.instance(ctx, workload)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s: process %d killed, %d serves after %s; all of %d pages came meanwhile, %d without details",
		workload, i.EnvoyPID, now.EnvoyPID, round(back.Sub(killed)), pages, without), nil
}

// pagesUntilBack asks for pages until details is on them and its Envoy is a new process. It gives the moment from which
// details was on every page.
func (t *Target) pagesUntilBack(ctx context.Context, workload string, oldPID int) (back time.Time, pages, without int, err error) {
	for {
		r, err := t.outside().want(ctx, http.StatusOK, t.Gateway+"/", nil)
		if err != nil {
			return back, pages, without, fmt.Errorf("a page failed as a whole: %w", err)
		}
		pages++
		if call := r.Answer.Upstream("details"); call == nil || !call.OK() {
			without++
			back = time.Time{}
		} else if back.IsZero() {
			back = time.Now()
		}
		i, err := t.instance(ctx, workload)
		if err != nil {
			return back, pages, without, err
		}
		if !back.IsZero() && i.Ready && i.EnvoyPID != 0 && i.EnvoyPID != oldPID {
			return back, pages, without, nil
		}
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return back, pages, without, fmt.Errorf("Envoy of %s did not come back (ready: %v, %v; process %d, was %d): %w",
				workload, i.Ready, i.Reasons, i.EnvoyPID, oldPID, err)
		}
	}
}

// controlPlaneAway stops the control plane under traffic and starts it again. A file that is saved meanwhile comes into
// force after that.
func controlPlaneAway(ctx context.Context, t *Target) (string, error) {
	page, err := t.as(ctx, "page-v1")
	if err != nil {
		return "", err
	}
	load := startLoad(ctx, t.outside(), t.Gateway+"/", headers{"x-strict": "yes"})
	evidence, err := t.awayAndBack(ctx, page)
	total, failed, first := load.stop()
	if err != nil {
		return "", err
	}
	if failed > 0 {
		return "", fmt.Errorf("%d of %d requests failed meanwhile, the first with %s", failed, total, first)
	}
	return fmt.Sprintf("%d requests, %d failed; %s", total, failed, evidence), nil
}

func (t *Target) awayAndBack(ctx context.Context, page *client) (evidence string, err error) {
	if err := pause(ctx, 200*time.Millisecond); err != nil { // some requests before, to compare
		return "", err
	}
	stopped := time.Now()
	if err := t.Mesh.StopControlPlane(ctx); err != nil {
		return "", err
	}
	if t.Mesh.Status(ctx).Control.Running {
		return "", errors.New("the control plane was stopped, and still runs")
	}
	_, undo, err := t.edit(reviewsFile, allToV3)
	if err != nil {
		return "", err
	}
	defer func() {
		_, undoErr := undo()
		err = errors.Join(err, undoErr)
	}()
	if err := pause(ctx, time.Second); err != nil {
		return "", err
	}
	if err := t.Mesh.StartControlPlane(ctx); err != nil {
		return "", err
	}
	started := time.Now()
	if err := t.inSync(ctx); err != nil {
		return "", err
	}
	synced := time.Now()
	in, err := settled(ctx, page, rowOfV3, fromV3)
	if err != nil {
		return "", fmt.Errorf("a file that was saved while the control plane was away is not in force: %w", err)
	}
	return fmt.Sprintf("away for %s, all proxies in sync %s after its start, a file saved meanwhile in force by %s",
		round(started.Sub(stopped)), round(synced.Sub(started)), round(in.Sub(started))), nil
}

// inSync waits until every proxy has the newest configuration.
func (t *Target) inSync(ctx context.Context) error {
	for {
		status := t.Mesh.Status(ctx)
		var waiting error
		for _, i := range status.Instances {
			if i.Config.State != mesh.ConfigInSync {
				waiting = fmt.Errorf("the configuration of %s is %s", i.Name, i.Config.State)
				break
			}
		}
		if waiting == nil && status.Control.Running {
			return nil
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return errors.Join(waiting, err)
		}
	}
}

// load is traffic that runs beside a check.
type load struct {
	cancel  context.CancelFunc
	workers sync.WaitGroup

	mu            sync.Mutex
	total, failed int
	first         string // how the first failure looked
}

// loadPace is what each of the workers waits between two requests: enough traffic to notice a gap of milliseconds, and
// processor time left for what is tried.
const (
	loadWorkers = 4
	loadPace    = 10 * time.Millisecond
)

func startLoad(ctx context.Context, c *client, url string, h headers) *load {
	ctx, cancel := context.WithCancel(ctx)
	l := &load{cancel: cancel}
	for range loadWorkers {
		l.workers.Go(func() {
			for pause(ctx, loadPace) == nil {
				// A request that has begun is finished: only its own failure counts, not the end of the load.
				r, err := c.get(context.WithoutCancel(ctx), url, h)
				l.count(r, err)
			}
		})
	}
	return l
}

// count takes a request that Go's client had to send twice for a failed one: something broke its connection.
func (l *load) count(r reply, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total++
	if err == nil && r.Status == http.StatusOK && r.Again == 0 {
		return
	}
	if l.failed++; l.failed == 1 {
		switch {
		case err != nil:
			l.first = err.Error()
		case r.Again > 0:
			l.first = "a broken connection: the request had to be sent again"
		default:
			l.first = r.String()
		}
	}
}

// stop ends the load and gives what came of it.
func (l *load) stop() (total, failed int, first string) {
	l.cancel()
	l.workers.Wait()
	return l.total, l.failed, l.first
}
