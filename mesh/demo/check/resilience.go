package check

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/backoff"
	"github.com/pilotfish-mesh/pilotfish/mesh"
)

// envoyKilled checks that the details service recovers after its Envoy was killed: it kills the Envoy, and requests pages
// until another Envoy serves details.
func envoyKilled(ctx context.Context, t *Target) (string, error) {
	const workload = "details-v1"
	i, err := t.instance(ctx, workload)
	if err != nil {
		return "", err
	}
	if i.EnvoyPID == 0 {
		return "", fmt.Errorf("the status of the mesh contains no process ID for the Envoy of %s", workload)
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
	return fmt.Sprintf("%s: Envoy process %d was killed, and process %d served after %s; all %d pages meanwhile succeeded, %d of them without details",
		workload, i.EnvoyPID, now.EnvoyPID, round(back.Sub(killed)), pages, without), nil
}

// pagesUntilBack requests pages until they contain details again and a new Envoy process serves details. All pages
// since back contain details. pages is the number of requests, and without is the number of pages without details.
func (t *Target) pagesUntilBack(ctx context.Context, workload string, oldPID int) (back time.Time, pages, without int, err error) {
	for {
		r, err := t.outsideClient().expect(ctx, http.StatusOK, t.Gateway+"/", nil)
		if err != nil {
			return back, pages, without, fmt.Errorf("requesting a page failed: %w", err)
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
		if !backoff.Sleep(ctx, 10*time.Millisecond) {
			return back, pages, without, fmt.Errorf("the Envoy of %s did not recover (ready: %v, reasons: %v; process %d, previously %d): %w",
				workload, i.Ready, i.Reasons, i.EnvoyPID, oldPID, ctx.Err())
		}
	}
}

// controlPlaneOutage checks that requests succeed while the control plane is stopped and started again. A file that is
// changed during the outage must take effect after it.
func controlPlaneOutage(ctx context.Context, t *Target) (string, error) {
	page, err := t.clientOf(ctx, "page-v1")
	if err != nil {
		return "", err
	}
	load := startLoad(ctx, t.outsideClient(), t.Gateway+"/", headers{"x-strict": "yes"})
	evidence, err := t.restartControlPlane(ctx, page)
	total, failed, first := load.stop()
	if err != nil {
		return "", err
	}
	if failed > 0 {
		return "", fmt.Errorf("%d of %d requests failed during the check; the first failure: %s", failed, total, first)
	}
	return fmt.Sprintf("%d requests, %d failed; %s", total, failed, evidence), nil
}

func (t *Target) restartControlPlane(ctx context.Context, page *client) (evidence string, err error) {
	if !backoff.Sleep(ctx, 200*time.Millisecond) { // so that some requests are sent before the outage
		return "", ctx.Err()
	}
	stopped := time.Now()
	if err := t.Mesh.StopControlPlane(ctx); err != nil {
		return "", err
	}
	if t.Mesh.Status(ctx).Control.Running {
		return "", errors.New("the control plane still runs after it was stopped")
	}
	_, undo, err := t.editFile(reviewsFile, allToV3)
	if err != nil {
		return "", err
	}
	defer func() {
		_, undoErr := undo()
		err = errors.Join(err, undoErr)
	}()
	if !backoff.Sleep(ctx, time.Second) {
		return "", ctx.Err()
	}
	if err := t.Mesh.StartControlPlane(ctx); err != nil {
		return "", err
	}
	started := time.Now()
	if err := t.waitInSync(ctx); err != nil {
		return "", err
	}
	synced := time.Now()
	in, err := waitForStreak(ctx, page, minStreak, fromV3)
	if err != nil {
		return "", fmt.Errorf("a file that was saved while the control plane was stopped is not in force: %w", err)
	}
	return fmt.Sprintf("stopped for %s; %s after its start all proxies were in sync; a file that was saved meanwhile was in force after %s",
		round(started.Sub(stopped)), round(synced.Sub(started)), round(in.Sub(started))), nil
}

// waitInSync waits until every proxy has acknowledged the newest configuration.
func (t *Target) waitInSync(ctx context.Context) error {
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
		if !backoff.Sleep(ctx, 20*time.Millisecond) {
			return errors.Join(waiting, ctx.Err())
		}
	}
}

// backgroundLoad sends requests during a check, and counts those that fail.
type backgroundLoad struct {
	cancel  context.CancelFunc
	workers sync.WaitGroup

	mu            sync.Mutex
	total, failed int
	first         string // description of the first failure
}

// loadPace is the pause between two requests of a worker. It is short enough to detect an interruption of milliseconds,
// and long enough to leave CPU time for the mesh.
const (
	loadWorkers = 4
	loadPace    = 10 * time.Millisecond
)

func startLoad(ctx context.Context, c *client, url string, h headers) *backgroundLoad {
	ctx, cancel := context.WithCancel(ctx)
	l := &backgroundLoad{cancel: cancel}
	for range loadWorkers {
		l.workers.Go(func() {
			for backoff.Sleep(ctx, loadPace) {
				// Do not cancel a started request when stop is called, because it would count as a failure.
				r, err := c.get(context.WithoutCancel(ctx), url, h)
				l.count(r, err)
			}
		})
	}
	return l
}

// count counts a request. A request that Go's HTTP client sent again because its connection broke also counts as
// failed.
func (l *backgroundLoad) count(r reply, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total++
	if err == nil && r.Status == http.StatusOK && r.Resent == 0 {
		return
	}
	if l.failed++; l.failed == 1 {
		switch {
		case err != nil:
			l.first = err.Error()
		case r.Resent > 0:
			l.first = "the connection broke, and the client sent the request again"
		default:
			l.first = r.String()
		}
	}
}

// stop ends the load and returns its results.
func (l *backgroundLoad) stop() (total, failed int, first string) {
	l.cancel()
	l.workers.Wait()
	return l.total, l.failed, l.first
}
