package api

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/mesh"
)

// row tests one property of the API. Rows run in parallel in a mesh, so each uses only its own hosts.
type row struct {
	// name describes the property.
	name string
	// docs are its documents, with these variables:
	//
	// 	$HOST                  the name of the row's own service in namespace default, with the servers v1 and v2 and the ports of serviceOf
	// 	$OUTSIDE               the address of a server outside of the mesh; $OUTSIDE_HTTP (…_TCP, …_TLS, …_MYSQL) are its ports
	// 	$DIR                   the mesh's folder, with ca.crt, and server.sock where the workload "server" serves HTTP too
	// 	$V1 $V2 $CLIENT $EDGE  addresses of workloads
	// 	$SERVER_CRT $SERVER_KEY $CA_CRT  for Secrets: the certificate of server.example and *.tls.example, its key and its CA
	//
	// Everything that the documents define has $HOST in its name or belongs to this row only.
	docs string
	// later are more documents. The check applies and removes them with applyLater and removeLater.
	later string
	// mesh are more fields of the mesh's configuration, for as long as the row runs. Nothing else runs then.
	mesh string
	// ports are those that the row's service has, by their names in servicePorts; none: all. Each of them, and of its
	// subsets, is a cluster at every caller.
	ports []string
	// check makes requests and returns an error if an answer is wrong. It runs again until it returns nil, since Envoy
	// applies documents some time after they are written. Therefore it must accept only results of the new
	// configuration.
	check func(w *testMesh, host string) error
	// exclusive are names that only one row holds at a time: that of a workload whose sidecar the documents change for
	// everybody ("guarded"), of a gateway's port, or of the mesh.
	exclusive []string
	// wantProblem is part of a finding that the control plane must report for the documents; empty: it must report
	// none.
	wantProblem string
	// versions are the versions of Envoy that the row is for; none: the oldest and the newest.
	versions []string
}

// runRows runs the rows in a mesh of the oldest and one of the newest Envoy version.
func runRows(t *testing.T, rows []row) {
	t.Helper()
	if err := mesh.CanCapture(); err != nil {
		t.Skip(err)
	}
	for _, version := range []string{testenv.EnvoyVersion, testenv.OldEnvoyVersion} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			w := meshFor(t, version)
			for _, r := range rows {
				if len(r.versions) > 0 && !slices.Contains(r.versions, version) {
					continue
				}
				t.Run(r.name, func(t *testing.T) {
					t.Parallel()
					r.run(t, w)
				})
			}
		})
	}
}

var notName = regexp.MustCompile(`[^a-z0-9]+`)

// rowTimeout is the maximum time in which the documents of a row must take effect on a busy machine.
var rowTimeout = flag.Duration("row-timeout", time.Minute, "maximum time until the documents of a row take effect")

func (r row) run(t *testing.T, w *testMesh) {
	defer w.lockMeshConfig(t, r.mesh)()
	slices.Sort(r.exclusive) // so that no two rows wait for each other
	for _, name := range r.exclusive {
		defer w.lock(name)()
	}
	host := strings.Trim(notName.ReplaceAllString(strings.ToLower(r.name), "-"), "-")
	file := filepath.Join(w.dir, "istio", host+".yaml")
	docs := serviceOf(host, "server", r.ports...) + "\n---\n" + w.fillIn(strings.ReplaceAll(r.docs+questionable, "$HOST", host))
	w.write(t, file, docs)
	w.storeLater(host, w.fillIn(strings.ReplaceAll(r.later, "$HOST", host)))
	defer func() {
		if err := errors.Join(os.Remove(file), w.removeLater(host)); err != nil {
			t.Error(err)
		}
	}()
	deadline, pause := time.Now().Add(*rowTimeout), 50*time.Millisecond
	for {
		err := r.check(w, host)
		if err == nil {
			err = r.checkProblems(w, file)
		}
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("%v\ntold: %v\nmesh: %s (while the test runs: log, istio/%s.yaml)\n%s", err, w.problemsOf(file), w.dir, host, w.endpointsAtClient(host))
			if os.Getenv("PILOTFISH_API_HOLD") != "" { // to look into the mesh
				time.Sleep(time.Hour)
			}
			return
		}
		time.Sleep(pause)
		pause = min(2*pause, time.Second) // constant polling would slow the processes that it waits for
	}
}

// questionable is a document that always has a finding. Once that is reported, the other documents have been checked
// too.
const questionable = `
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: $HOST-questionable}
spec: {hosts: [$HOST.questionable.example], gateways: [$HOST-questionable], http: [{directResponse: {status: 200}}]}
`

// checkProblems compares the control plane's findings for the row's documents with the expected one.
func (r row) checkProblems(w *testMesh, file string) error {
	all := w.problemsOf(file)
	findings := slices.DeleteFunc(slices.Clone(all), func(p string) bool { return strings.Contains(p, "-questionable: ") })
	switch {
	case len(findings) == len(all):
		return errors.New("the documents have not been looked at yet")
	case r.wantProblem == "" && len(findings) > 0:
		return fmt.Errorf("the documents have problems: %s", strings.Join(findings, "\n"))
	case r.wantProblem != "" && !strings.Contains(strings.Join(findings, "\n"), r.wantProblem):
		return fmt.Errorf("nothing with %q is told, but %s", r.wantProblem, strings.Join(findings, "\n"))
	}
	return nil
}

func (w *testMesh) problemsOf(file string) []string {
	var findings []string
	for _, p := range w.Status(w.ctx).Control.Problems {
		if p.At.File == file {
			findings = append(findings, p.String())
		}
	}
	return findings
}

// endpointsAtClient is what the caller's Envoy knows of the row's services.
func (w *testMesh) endpointsAtClient(host string) string {
	got, err := w.get("client", "http://127.0.0.1:15000/clusters")
	if err != nil {
		return err.Error()
	}
	var lines []string
	for line := range strings.SplitSeq(got.Body, "\n") {
		if strings.Contains(line, "|"+host) && (strings.Contains(line, "health_flags") || strings.Contains(line, "cx_total") || strings.Contains(line, "cx_connect_fail")) {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n")
}

// toJSON is for messages of failures.
func toJSON(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(text)
}
