// Package check tries out a running book shop with real requests, and says of each promise whether it was kept and what
// was seen.
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

// Mesh is what the checks need of the mesh beside its traffic.
type Mesh interface {
	Status(context.Context) mesh.Status
	StopControlPlane(context.Context) error
	StartControlPlane(context.Context) error
	// Dial connects as a workload's application does, or as a stranger in the mesh's network for none.
	Dial(ctx context.Context, workload, network, address string) (net.Conn, error)
}

// Target is the shop to check.
type Target struct {
	Mesh Mesh
	// Gateway is the shop's address outside of the mesh, http://127.0.0.1:8080.
	Gateway string
	// ConfigDir is the directory of configuration that the mesh watches. Checks change files in it, and change them back.
	ConfigDir string
	// WaitReady waits until every workload was ready; Stop ends the mesh and returns once it has ended.
	WaitReady, Stop func(context.Context) error
	// Folders are what the shop made on disk, which has to be gone at the end.
	Folders []string

	started  time.Time
	startErr error // why the mesh did not come up
	clients  map[string]*client
}

// Result is what one check found.
type Result struct {
	Check    string  `json:"check"`
	OK       bool    `json:"ok"`
	Evidence string  `json:"evidence"`
	Seconds  float64 `json:"seconds"`
}

// Report is told of each check as it begins and ends.
type Report interface {
	Begin(name string)
	End(Result)
}

// check is one promise, and how to see whether it is kept. What run returns is the evidence; its error says why not.
type check struct {
	name    string
	timeout time.Duration
	run     func(context.Context, *Target) (string, error)
}

// traffic are the checks of a running mesh, in order. None depends on an earlier one.
var traffic = []check{
	{"a page through the gateway", 10 * time.Second, pageThroughGateway},
	{"weights over 1,000 requests", 20 * time.Second, weights},
	{"route by header", 10 * time.Second, routeByHeader},
	{"injected fault", 10 * time.Second, injectedFault},
	{"retry hides the fault", 15 * time.Second, retryHidesFault},
	{"timeout cuts a slow call", 10 * time.Second, timeoutCuts},
	{"STRICT mutual TLS", 10 * time.Second, strictMutualTLS},
	{"identity of the caller", 10 * time.Second, callersIdentity},
	{"authorization policy", 10 * time.Second, authorizationPolicy},
	{"edited file, no restart", 15 * time.Second, editedFile},
	{"bad document refused alone", 15 * time.Second, badDocument},
	{"Envoy killed and back", 20 * time.Second, envoyKilled},
	{"control plane away and back", 25 * time.Second, controlPlaneAway},
}

var (
	startUp  = check{"all workloads ready", 30 * time.Second, allReady}
	cleanEnd = check{"clean end", 20 * time.Second, endsClean}
)

// NameWidth is the length of the longest name of a check, for tables that are printed while they grow.
func NameWidth() int {
	width := max(len(startUp.name), len(cleanEnd.name))
	for _, c := range traffic {
		width = max(width, len(c.name))
	}
	return width
}

// Run waits for the shop, checks it, ends it, and gives all results. A check that fails keeps no other from being run;
// a mesh that does not come up leaves nothing to run but the end.
func Run(ctx context.Context, t *Target, report Report) []Result {
	t.started = time.Now()
	t.clients = map[string]*client{}
	results := []Result{t.try(ctx, startUp, report)}
	if results[0].OK {
		for _, c := range traffic {
			if ctx.Err() != nil {
				break
			}
			results = append(results, t.try(ctx, c, report))
		}
	}
	// The end is checked even when the run was interrupted: it has to happen in any case.
	return append(results, t.try(context.WithoutCancel(ctx), cleanEnd, report))
}

func (t *Target) try(ctx context.Context, c check, report Report) Result {
	report.Begin(c.name)
	limited, cancel := context.WithTimeoutCause(ctx, c.timeout, fmt.Errorf("the check had %s", c.timeout))
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
		return "", errors.New("the mesh reports no workload")
	}
	for _, i := range status.Instances {
		if !i.Ready {
			return "", fmt.Errorf("%s is not ready: %v", i.Name, i.Reasons)
		}
	}
	return fmt.Sprintf("%d of %d in %s, on Envoy %s", len(status.Instances), len(status.Instances), round(took), status.EnvoyVersion), nil
}

// round is a time as a person wants it.
func round(d time.Duration) string { return console.Duration(d) }
