package traffic

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/controlplane/ca"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
	"github.com/pilotfish-mesh/pilotfish/internal/meshfuzz"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/mesh"
)

// maxMovedBytes limits what a control plane may send to a proxy that reconnects to it with an up-to-date configuration.
const maxMovedBytes = 200

// TestNoRequestFailsWhenOneOfTwoControlPlanesIsKilled runs two control planes as separate processes with common files
// and one authority. It kills each of them, with and without concurrent edits. No request fails, and the proxies
// reconnect to the other control plane with an up-to-date configuration.
func TestNoRequestFailsWhenOneOfTwoControlPlanesIsKilled(t *testing.T) {
	w := layOut(t, "planes", meshfuzz.Options{ClusterIP: func(service int) string { return fmt.Sprintf("240.0.7.%d", 1+service) }})
	pair := w.planes(2)
	where := strings.Join([]string{pair[0].meshAddress(), pair[1].meshAddress()}, ",")
	proxyConfig, err := json.Marshal(map[string]string{"discoveryAddress": where})
	if err != nil {
		t.Fatal(err)
	}
	w.newMesh(*envoyVersion, "ISTIOD_SAN=istiod.istio-system.svc", "CA_ADDR="+where, "PROXY_CONFIG="+string(proxyConfig))
	w.onAddresses = w.writeEntries
	w.run()
	if err := w.StopControlPlane(w.ctx); err != nil { // the mesh's own, which has no clients
		t.Fatal(err)
	}
	f := w.startTraffic()
	f.activity.Store("a control plane is killed")
	for _, killed := range []int{0, 1, 0} {
		w.movePlane(f, pair[killed], pair[1-killed])
	}
	w.edit(f, func(n int) {
		switch n % 40 {
		case 10:
			pair[n/40%2].kill()
		case 30:
			pair[n/40%2].start()
		}
	})
	for _, p := range pair {
		p.start()
	}
	f.activity.Store("all edits are made, and a control plane is killed")
	w.movePlane(f, pair[1], pair[0])
	w.movePlane(f, pair[0], pair[1])
	f.done()
}

// movePlane kills a control plane, waits until all proxies are served by the other one, and has it start again.
func (w *testMesh) movePlane(f *traffic, from, to *plane) {
	w.t.Helper()
	f.check()
	w.waitRead(from, to)
	w.waitInSync(f, from, to)
	moving := from.clients()
	before := to.bytesSent()
	from.kill()
	w.waitInSync(f, to)
	after := to.bytesSent()
	delta := map[string]float64{}
	for name, sent := range after {
		if sent != before[name] {
			delta[name] = sent - before[name]
		}
	}
	bytes := 0.0
	for _, sent := range delta {
		bytes += sent
	}
	w.t.Logf("%d streams moved to %s, for %v bytes: %v", moving, to.address(), bytes, delta)
	if bytes > float64(moving*maxMovedBytes) {
		w.t.Errorf("%d streams moved to another control plane, which sent them %v bytes: %v", moving, bytes, delta)
	}
	from.start()
}

// waitRead waits until these control planes have read all that was written, and sent what there was to send.
func (w *testMesh) waitRead(planes ...*plane) {
	w.t.Helper()
	w.marks++
	mark := fmt.Sprintf("mark-%d", w.marks)
	w.write("istio/mark.yaml", "apiVersion: networking.istio.io/v1\nkind: WorkloadGroup\nmetadata: {name: "+mark+", namespace: ns0}\nspec: {template: {}}\n")
	for _, p := range planes {
		testenv.Eventually(w.t, "the last document is read", func() error {
			var documents string
			if err := p.page("/debug/configz", &documents); err != nil {
				return err
			}
			if !strings.Contains(documents, `"`+mark+`"`) {
				return fmt.Errorf("%s is not there", mark)
			}
			return nil
		})
		testenv.Eventually(w.t, "nothing more is sent", func() error {
			before := p.bytesSent()
			time.Sleep(time.Second)
			if after := p.bytesSent(); !maps.Equal(before, after) {
				return fmt.Errorf("%v were sent, and then %v", before, after)
			}
			return nil
		})
	}
}

// waitInSync waits until all proxies are in sync with these control planes.
func (w *testMesh) waitInSync(f *traffic, planes ...*plane) {
	w.t.Helper()
	testenv.Eventually(w.t, "all proxies are in sync", func() error {
		f.check()
		nodes := map[string]bool{}
		for _, p := range planes {
			var clients []struct {
				Node   string
				InSync bool
				Types  []struct{ TypeURL string }
			}
			if err := p.page("/debug/syncz", &clients); err != nil {
				return err
			}
			for _, c := range clients {
				nodes[c.Node] = true
				// The agent's own subscription is the last one.
				if !c.InSync || !slices.ContainsFunc(c.Types, func(t struct{ TypeURL string }) bool { return t.TypeURL == xds.ProxyConfigType }) {
					return fmt.Errorf("%s is not", c.Node)
				}
			}
		}
		if n := len(w.Instances()); len(nodes) != n {
			return fmt.Errorf("%d of %d are connected", len(nodes), n)
		}
		return nil
	})
}

// writeEntries writes an entry for each instance that is called, which the mesh's own control plane has without a document.
func (w *testMesh) writeEntries() {
	w.t.Helper()
	for _, i := range w.Instances() {
		app, version, called := strings.Cut(i.Name, "-")
		if called {
			w.write("istio/"+i.Name+".yaml", fmt.Sprintf(entry, i.Name, app[1:], i.Proxy, app, version, app, portHTTP, portTCP))
		}
	}
}

const entry = `
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: %s, namespace: ns%s}
spec:
  address: %s
  labels: {app: %s, version: %s, security.istio.io/tlsMode: istio}
  serviceAccount: %s
  ports: {http: %d, tcp: %d}
`

// plane is a control plane in a process of its own, on this machine's loopback.
type plane struct {
	w                  *testMesh
	secure, monitoring int
	state              string
	cmd                *exec.Cmd
	exited             chan struct{}
	output             testenv.Buffer
}

// planes starts control planes over the mesh's documents, each with a copy of its authority.
func (w *testMesh) planes(n int) []*plane {
	w.t.Helper()
	if _, err := ca.Load(w.state, ca.Options{}); err != nil {
		w.t.Fatal(err)
	}
	var all []*plane
	for i := range n {
		p := &plane{w: w, secure: testenv.FreePort(w.t), monitoring: testenv.FreePort(w.t), state: filepath.Join(w.dir, fmt.Sprintf("state-%d", i))}
		if err := os.CopyFS(p.state, os.DirFS(w.state)); err != nil {
			w.t.Fatal(err)
		}
		if err := restrictAccess(p.state); err != nil {
			w.t.Fatal(err)
		}
		w.t.Cleanup(p.kill)
		p.start()
		all = append(all, p)
	}
	return all
}

// restrictAccess removes the access of other users that a copy granted: the authority refuses keys that they can read.
func restrictAccess(dir string) error {
	return filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			return os.Chmod(path, 0o700)
		}
		return os.Chmod(path, 0o600)
	})
}

func (p *plane) address() string { return fmt.Sprintf("127.0.0.1:%d", p.secure) }

// meshAddress is its address for workloads of the mesh.
func (p *plane) meshAddress() string { return fmt.Sprintf("%s:%d", mesh.HostName, p.secure) }

// start starts it, if it does not run, and waits until it serves.
func (p *plane) start() {
	p.w.t.Helper()
	if p.cmd != nil {
		return
	}
	p.cmd = exec.Command(testenv.Bin(p.w.t, "pilotfish"), "control-plane", "--config-dir", filepath.Join(p.w.dir, "istio"), "--state-dir", p.state,
		"--address", "127.0.0.1", "--port", "-2", "--token-port", "-2", "--log-level", "warn", "--allow-local-endpoints", "127.0.0.0/8",
		"--secure-port", strconv.Itoa(p.secure), "--monitoring-port", strconv.Itoa(p.monitoring))
	p.cmd.Stderr = &p.output
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started, exited, cmd := make(chan error), make(chan struct{}), p.cmd
	p.exited = exited
	go func() { // the kernel kills the child with the thread that started it, so that thread has to stay
		defer close(exited)
		runtime.LockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		p.w.t.Fatal(err)
	}
	testenv.Eventually(p.w.t, "the control plane serves", func() error {
		if err := p.page("/ready", nil); err != nil {
			return fmt.Errorf("%w: %s", err, p.output.String())
		}
		return nil
	})
}

// kill kills it, if it runs.
func (p *plane) kill() {
	if p.cmd != nil {
		_ = p.cmd.Process.Kill()
		<-p.exited
		p.cmd = nil
	}
}

// page reads a page of the monitoring port.
func (p *plane) page(path string, into any) error {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d%s", p.monitoring, path), nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	switch {
	case err != nil:
		return err
	case response.StatusCode != http.StatusOK:
		return fmt.Errorf("%s: status %d: %s", path, response.StatusCode, text)
	}
	switch into := into.(type) {
	case nil:
		return nil
	case *string:
		*into = string(text)
		return nil
	}
	return json.Unmarshal(text, into)
}

// bytesSent is how many bytes of resources it has sent, by type.
func (p *plane) bytesSent() map[string]float64 {
	p.w.t.Helper()
	return p.metric("pilot_xds_config_size_bytes_sum")
}

// clients is how many streams it has.
func (p *plane) clients() int {
	p.w.t.Helper()
	return int(slices.Max(slices.Collect(maps.Values(p.metric("pilot_xds ")))))
}

// metric reads the values of a metric by its labels.
func (p *plane) metric(name string) map[string]float64 {
	p.w.t.Helper()
	var text string
	if err := p.page("/metrics", &text); err != nil {
		p.w.t.Fatal(err)
	}
	values := map[string]float64{}
	var errs []error
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, name) {
			continue
		}
		at := strings.LastIndexByte(line, ' ')
		value, err := strconv.ParseFloat(strings.TrimSpace(line[at:]), 64)
		errs = append(errs, err)
		values[line[:at]] = value
	}
	if err := errors.Join(errs...); err != nil {
		p.w.t.Fatal(err)
	}
	return values
}
