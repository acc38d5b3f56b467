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

// row is one promise of the API. Rows run beside each other in a mesh, so each keeps to hosts of its own.
type row struct {
	// name says the promise.
	name string
	// docs are its documents. $HOST stands for the name of a service of the row's own, which has the servers v1 and v2 and
	// the ports of serviceOf, in namespace default; $OUTSIDE for the address of a server outside of the mesh, $OUTSIDE_HTTP
	// (…_TCP, …_TLS, …_MYSQL) for its ports; $DIR for the mesh's folder, with ca.crt, and server.sock where the workload "server" serves HTTP too; $V1, $V2, $CLIENT and
	// $EDGE for addresses of workloads. What the documents are about has to
	// have $HOST in its name, too, or be of the row alone. $SERVER_CRT, $SERVER_KEY and $CA_CRT are for Secrets: the
	// certificate of server.example and *.tls.example, its key, and who signed it.
	docs string
	// later are more documents, which the check has come into force, and go again, by andThen and butFirst.
	later string
	// mesh are more fields of the mesh's configuration, for as long as the row runs. Nothing else runs then.
	mesh string
	// ports are those that the row's service has, by their names in servicePorts; none: all. Each of them, and of its
	// subsets, is a cluster at every caller.
	ports []string
	// check makes requests and says what is wrong with the answers. It is asked again until it returns nil, since documents
	// are in force only soon after they are written, so it holds for good what it wants to see, and nothing of before.
	check func(w *world, host string) error
	// alone are names that only one row holds at a time: that of a workload whose sidecar the documents change for
	// everybody ("guarded"), of a gateway's port, or of the mesh.
	alone []string
	// told is part of a problem that the documents are to be told of; empty: there is to be none.
	told string
	// only are the versions of Envoy that the row is for; none: the oldest and the newest.
	only []string
}

// runRows keeps the promises in a mesh of the oldest and one of the newest Envoy.
func runRows(t *testing.T, rows []row) {
	t.Helper()
	if err := mesh.CanCapture(); err != nil {
		t.Skip(err)
	}
	for _, version := range []string{testenv.EnvoyVersion, testenv.OldEnvoyVersion} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			w := worldOf(t, version)
			for _, r := range rows {
				if len(r.only) > 0 && !slices.Contains(r.only, version) {
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

// patience is how long a row's documents have to be in force. The machine may be busy with much else.
var patience = flag.Duration("patience", time.Minute, "how long the documents of a row may take to do what it promises")

func (r row) run(t *testing.T, w *world) {
	defer w.share(t, r.mesh)()
	slices.Sort(r.alone) // so that no two rows wait for each other
	for _, name := range r.alone {
		defer w.lock(name)()
	}
	host := strings.Trim(notName.ReplaceAllString(strings.ToLower(r.name), "-"), "-")
	file := filepath.Join(w.dir, "istio", host+".yaml")
	docs := serviceOf(host, "server", r.ports...) + "\n---\n" + w.fillIn(strings.ReplaceAll(r.docs+questionable, "$HOST", host))
	w.write(t, file, docs)
	w.promise(host, w.fillIn(strings.ReplaceAll(r.later, "$HOST", host)))
	defer func() {
		if err := errors.Join(os.Remove(file), w.butFirst(host)); err != nil {
			t.Error(err)
		}
	}()
	deadline, pause := time.Now().Add(*patience), 50*time.Millisecond
	for {
		err := r.check(w, host)
		if err == nil {
			err = r.problems(w, file)
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
		pause = min(2*pause, time.Second) // who asks all the time keeps those busy that it waits for
	}
}

// questionable is a document that something is always told of: when that is known, so is what there is to tell of the others.
const questionable = `
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: $HOST-questionable}
spec: {hosts: [$HOST.questionable.example], gateways: [$HOST-questionable], http: [{directResponse: {status: 200}}]}
`

// problems compares what the control plane tells of the row's documents with what it is to tell.
func (r row) problems(w *world, file string) error {
	all := w.problemsOf(file)
	told := slices.DeleteFunc(slices.Clone(all), func(p string) bool { return strings.Contains(p, "-questionable: ") })
	switch {
	case len(told) == len(all):
		return errors.New("the documents have not been looked at yet")
	case r.told == "" && len(told) > 0:
		return fmt.Errorf("the documents have problems: %s", strings.Join(told, "\n"))
	case r.told != "" && !strings.Contains(strings.Join(told, "\n"), r.told):
		return fmt.Errorf("nothing with %q is told, but %s", r.told, strings.Join(told, "\n"))
	}
	return nil
}

func (w *world) problemsOf(file string) []string {
	var told []string
	for _, p := range w.Status(w.ctx).Control.Problems {
		if p.At.File == file {
			told = append(told, p.String())
		}
	}
	return told
}

// endpointsAtClient is what the caller's Envoy knows of the row's services.
func (w *world) endpointsAtClient(host string) string {
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
