package sandbox

import (
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/cni/agentapi"
	"github.com/pilotfish-mesh/pilotfish/cni/repair"
	podsandbox "github.com/pilotfish-mesh/pilotfish/cni/sandbox"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// alone is a network with only the bridge plugin, on a node whose node agent started late.
const alone = `{"cniVersion":"1.0.0","name":"pods","plugins":[{"type":"bridge","bridge":"pods","isGateway":true,
 "ipam":{"type":"host-local","dataDir":"DIR/ipam","ranges":[[{"subnet":"10.88.0.0/16"}]]}}]}`

func TestRealPodStartedBeforePluginIsRepaired(t *testing.T) {
	n := newNode(t, alone)
	pod, other := meshPod("web"), plainPod("db")
	pod.Metadata.UID = "0f0f1111-2222-3333-4444-555566667777"
	other.Metadata.UID = "0f0f1111-2222-3333-4444-555566668888"
	web, db := n.mustRun(t, pod), n.mustRun(t, other)
	webApp, dbApp := web.serve(t, 8080), db.serve(t, 8080)
	web.waitFor(t, webApp, db.address(0, 8080))
	db.waitFor(t, dbApp, web.address(0, 8080))
	web.startEnvoy(t, redirected)
	for p, s := range map[*agentapi.Pod]*sandbox{pod: web, other: db} {
		p.Status.PodIP = s.addresses[0].String()
		p.Status.ContainerStatuses = []agentapi.ContainerStatus{{Name: "app", ContainerID: "containerd://" + webApp}}
	}
	traffic := func(out, in string) {
		t.Helper()
		if answer := web.get(t, webApp, db.address(0, 8080)); !strings.HasPrefix(answer, "200 through=["+out+"] host=db") {
			t.Errorf("out of the pod: %s", answer)
		}
		if answer := db.get(t, dbApp, web.address(0, 8080)); !strings.HasPrefix(answer, "200 through=["+in+"] host=web") {
			t.Errorf("into the pod: %s", answer)
		}
	}
	traffic("", "")

	log, acted := &testenv.Buffer{}, ""
	r, err := repair.New(repair.Config{
		Mode:        repair.Repair,
		Pods:        func() []*agentapi.Pod { return []*agentapi.Pod{pod, other} },
		Scan:        func() (repair.SandboxFinder, error) { return podsandbox.Scan("/proc", "/proc/thread-self/ns/net") },
		Redirection: repair.Kernel{Logger: slog.New(slog.NewTextHandler(log, nil))},
		HistoryFile: filepath.Join(n.dir, "repaired"),
		Callbacks:   repair.Callbacks{Acted: func(mode repair.Mode, result string) { acted += string(mode) + " " + result }},
		Logger:      slog.New(slog.NewTextHandler(log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	r.Sweep(t.Context())
	if acted != "repair success" {
		t.Fatalf("acted: %q\n%s", acted, log)
	}
	// Envoy may not listen yet. Until then, connections are refused and do not bypass it.
	for from, to := range map[*sandbox]string{web: db.address(0, 8080), db: web.address(0, 8080)} {
		app := map[*sandbox]string{web: webApp, db: dbApp}[from]
		testenv.Eventually(t, "Envoy to listen", func() error {
			if answer := from.get(t, app, to); strings.Contains(answer, "connection refused") {
				return errors.New(answer)
			}
			return nil
		})
	}
	traffic("outbound", "inbound")
}
