// Package check checks a running book shop with real requests. For each check, it reports the result and evidence for it.
package check

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/pilotfish-mesh/pilotfish/mesh"
	"github.com/pilotfish-mesh/pilotfish/mesh/console"
)

// Mesh is the part of a mesh's API that the checks use.
type Mesh interface {
	Status(context.Context) mesh.Status
	StopControlPlane(context.Context) error
	StartControlPlane(context.Context) error
	// Dial connects to address in the same way as the workload's application does. If workload is empty, it connects as a
	// client without a sidecar.
	Dial(ctx context.Context, workload, network, address string) (net.Conn, error)
}

// Target is the book shop to check.
type Target struct {
	Mesh Mesh
	// Gateway is the URL at which clients outside of the mesh reach the shop, such as http://127.0.0.1:8080.
	Gateway string
	// ConfigDir is the configuration directory that the mesh watches. The checks change files in it, and restore them.
	ConfigDir string
	// WaitReady waits until every workload is ready. Stop stops the mesh and waits until it has ended.
	WaitReady, Stop func(context.Context) error
	// Folders lists the shop's directories. They must not exist after the mesh has stopped.
	Folders []string

	started  time.Time
	startErr error // the reason why the mesh did not start
	clients  map[string]*client
}

// Result is the result of one check.
type Result struct {
	Check    string  `json:"check"`
	OK       bool    `json:"ok"`
	Evidence string  `json:"evidence"`
	Seconds  float64 `json:"seconds"`
}

// Report receives the start and the result of each check.
type Report interface {
	Begin(name string)
	End(Result)
}

// check is a named check of the shop. run returns the evidence of success, or an error that describes the failure.
type check struct {
	name    string
	timeout time.Duration
	run     func(context.Context, *Target) (string, error)
}

// traffic lists the checks of a running mesh, in the order in which they run. They do not depend on each other.
var traffic = []check{
	{"page through the gateway", 10 * time.Second, pageThroughGateway},
	{"weights over 1,000 requests", 20 * time.Second, weights},
	{"route by header", 10 * time.Second, routeByHeader},
	{"injected fault", 10 * time.Second, injectedFault},
	{"retry hides the fault", 15 * time.Second, retryHidesFault},
	{"timeout of a slow call", 10 * time.Second, timeoutCuts},
	{"STRICT mutual TLS", 10 * time.Second, strictMutualTLS},
	{"identity of the caller", 10 * time.Second, callersIdentity},
	{"authorization policy", 10 * time.Second, authorizationPolicy},
	{"config edit without restart", 15 * time.Second, editedFile},
	{"invalid document is refused", 15 * time.Second, badDocument},
	{"recovery of a killed Envoy", 20 * time.Second, envoyKilled},
	{"control plane outage", 25 * time.Second, controlPlaneOutage},
}

var (
	startUpCheck  = check{"all workloads ready", 30 * time.Second, allReady}
	teardownCheck = check{"clean shutdown", 20 * time.Second, checkTeardown}
)

// NameWidth returns the length of the longest check name, which is the width of a table column.
func NameWidth() int {
	width := max(len(startUpCheck.name), len(teardownCheck.name))
	for _, c := range traffic {
		width = max(width, len(c.name))
	}
	return width
}

// Run waits until the shop is ready, runs the checks, stops the shop, and returns all results. It continues after a failed
// check. If the mesh does not start, Run checks only its teardown.
func Run(ctx context.Context, t *Target, report Report) []Result {
	t.started = time.Now()
	t.clients = map[string]*client{}
	results := []Result{t.runCheck(ctx, startUpCheck, report)}
	if results[0].OK {
		for _, c := range traffic {
			if ctx.Err() != nil {
				break
			}
			results = append(results, t.runCheck(ctx, c, report))
		}
	}
	// The teardown check is not cancelled with ctx, because it stops the mesh.
	return append(results, t.runCheck(context.WithoutCancel(ctx), teardownCheck, report))
}

func (t *Target) runCheck(ctx context.Context, c check, report Report) Result {
	report.Begin(c.name)
	limited, cancel := context.WithTimeoutCause(ctx, c.timeout, fmt.Errorf("the check's timeout is %s", c.timeout))
	defer cancel()
	start := time.Now()
	evidence, err := c.run(limited, t)
	r := Result{Check: c.name, OK: err == nil, Evidence: evidence, Seconds: time.Since(start).Seconds()}
	if err != nil {
		r.Evidence = err.Error()
		if errors.Is(limited.Err(), context.DeadlineExceeded) {
			r.Evidence = fmt.Sprintf("timed out (%v): %s", context.Cause(limited), r.Evidence)
		}
	}
	report.End(r)
	return r
}

func allReady(ctx context.Context, t *Target) (string, error) {
	if t.startErr = t.WaitReady(ctx); t.startErr != nil {
		return "", t.startErr
	}
	took := time.Since(t.started)
	status := t.Mesh.Status(ctx)
	if len(status.Instances) == 0 {
		return "", errors.New("the status of the mesh contains no workload")
	}
	for _, i := range status.Instances {
		if !i.Ready {
			return "", fmt.Errorf("%s is not ready: %v", i.Name, i.Reasons)
		}
	}
	return fmt.Sprintf("%d of %d ready in %s, Envoy %s", len(status.Instances), len(status.Instances), round(took), status.EnvoyVersion), nil
}

// round formats a duration.
func round(d time.Duration) string { return console.Duration(d) }
