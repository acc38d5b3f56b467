package registration

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

var groupKey = config.Key{Kind: config.WorkloadGroup, Namespace: "shop", Name: "tills"}

func groupOf(labels map[string]string) *config.Resource {
	annotations := map[string]string{config.MemberLabelsAnnotation: "version, tier", config.MemberAddressesAnnotation: "10.9.0.0/16"}
	return &config.Resource{Key: groupKey, Annotations: annotations, Spec: &networking.WorkloadGroup{
		Metadata: &networking.WorkloadGroup_ObjectMeta{Labels: labels, Annotations: map[string]string{"from": "group"}},
		Template: &networking.WorkloadEntry{
			ServiceAccount: "till", Labels: map[string]string{"app": "till", "tier": "template"}, Ports: map[string]uint32{"http": 8080}, Weight: 3,
		},
	}}
}

// testRegistrar is a running registrar with the WorkloadGroups that it uses.
type testRegistrar struct {
	*Registrar
	groups *config.MemoryStore
	stop   func()
}

func newTestRegistrar(t *testing.T, file string) *testRegistrar {
	t.Helper()
	groups := config.NewMemoryStore()
	groups.Put(groupOf(map[string]string{"tier": "group"}))
	return startRegistrar(t, groups, file)
}

func startRegistrar(t *testing.T, groups *config.MemoryStore, file string) *testRegistrar {
	t.Helper()
	r := New(Config{Groups: groups, File: file})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = r.Run(ctx) }()
	stop := func() { cancel(); <-ended }
	t.Cleanup(stop)
	synctest.Wait() // wait until the registrar watches the groups
	return &testRegistrar{r, groups, stop}
}

func newTillWorkload(address string) Workload {
	at := netip.MustParseAddr(address)
	return Workload{Group: "tills", Namespace: "shop", ServiceAccount: "till", Address: at, Source: at}
}

func (w *testRegistrar) connect(t *testing.T, workload Workload) *Registration {
	t.Helper()
	registration, err := w.Connect(workload)
	if err != nil {
		t.Fatal(err)
	}
	return registration
}

// entries lists the names and addresses in force.
func (w *testRegistrar) entries() string {
	var out []string
	for _, r := range w.List(config.WorkloadEntry) {
		out = append(out, r.Name+"="+r.Spec.(*networking.WorkloadEntry).GetAddress())
	}
	return strings.Join(out, " ")
}

func (w *testRegistrar) wantEntries(t *testing.T, want string) {
	t.Helper()
	if got := w.entries(); got != want {
		t.Errorf("the published entries are %q, want %q", got, want)
	}
}

func TestWorkloadIsAnEntryOfItsGroupWhileItIsConnected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestRegistrar(t, "")
		one := newTillWorkload("10.0.0.1")
		one.Labels, one.Network, one.Locality = map[string]string{"version": "v2", "tier": "own"}, "cellar", "r/z"
		first := w.connect(t, one)
		w.wantEntries(t, "tills-10.0.0.1-cellar=10.0.0.1")
		entry := w.List(config.WorkloadEntry)[0]
		spec := entry.Spec.(*networking.WorkloadEntry)
		for key, want := range map[string]string{"app": "till", "tier": "group", "version": "v2", "security.istio.io/tlsMode": "istio"} {
			if spec.GetLabels()[key] != want || first.Labels[key] != want {
				t.Errorf("label %s is %q in the entry and %q for the proxy, want %q", key, spec.GetLabels()[key], first.Labels[key], want)
			}
		}
		if spec.GetServiceAccount() != "till" || spec.GetLocality() != "r/z" || spec.GetNetwork() != "cellar" || spec.GetPorts()["http"] != 8080 ||
			spec.GetWeight() != 3 || entry.Annotations["from"] != "group" || entry.Annotations["istio.io/autoRegistrationGroup"] != "tills" {
			t.Errorf("the entry is %v, annotations %v", spec, entry.Annotations)
		}

		second := w.connect(t, one) // the next stream connects before the registrar notices that the last one ended
		first.Disconnect()
		first.Disconnect()
		time.Sleep(time.Minute)
		synctest.Wait()
		w.wantEntries(t, "tills-10.0.0.1-cellar=10.0.0.1")
		second.Disconnect()
		time.Sleep(9 * time.Second)
		synctest.Wait()
		w.wantEntries(t, "tills-10.0.0.1-cellar=10.0.0.1")
		time.Sleep(2 * time.Second)
		synctest.Wait()
		w.wantEntries(t, "")
		if len(w.Workloads()) != 0 {
			t.Errorf("the registrar still has the workload: %v", w.Workloads())
		}
	})
}

func TestReconnectWithinGracePeriodKeepsTheEntry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestRegistrar(t, "")
		changes := 0
		defer w.Subscribe(func([]config.Key) { changes++ })()
		for range 5 {
			w.connect(t, newTillWorkload("10.0.0.1")).Disconnect()
			time.Sleep(8 * time.Second)
			synctest.Wait()
		}
		if w.wantEntries(t, "tills-10.0.0.1=10.0.0.1"); changes != 1 {
			t.Errorf("subscribers were notified of %d changes", changes)
		}
	})
}

func TestConnectionsWithOtherLabelsDoNotEvictEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestRegistrar(t, "")
		one, two := newTillWorkload("10.0.0.1"), newTillWorkload("10.0.0.1")
		one.Labels, two.Labels = map[string]string{"version": "v1"}, map[string]string{"version": "v2"}
		first, second := w.connect(t, one), w.connect(t, two)
		if first.IsOutdated() || second.IsOutdated() {
			t.Error("a connection is outdated because of the other connection's claims")
		}
		if got := w.List(config.WorkloadEntry)[0].Labels["version"]; got != "v2" {
			t.Errorf("the entry has the labels of %q, not those of the last connection", got)
		}
		w.groups.Put(groupOf(map[string]string{"tier": "other"}))
		synctest.Wait()
		if !first.IsOutdated() || !second.IsOutdated() {
			t.Error("the group's labels changed, but not both connections are outdated")
		}
	})
}

func TestUnhealthyWorkloadIsNotInForce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "registered")
		w := newTestRegistrar(t, file)
		probed := newTillWorkload("10.0.0.1")
		probed.HealthChecked = true
		r := w.connect(t, probed)
		w.wantEntries(t, "")
		r.HandleHealthReport(true, "")
		w.wantEntries(t, "tills-10.0.0.1=10.0.0.1")
		r.HandleHealthReport(false, "GET /: 500")
		w.wantEntries(t, "")
		if s := w.Workloads(); len(s) != 1 || s[0].Reason != "GET /: 500" || s[0].InForce {
			t.Errorf("the status of the workload is %+v", s)
		}
		synctest.Wait()
		w.stop()
		next := startRegistrar(t, w.groups, file)
		next.wantEntries(t, "") // the last health report must survive a restart
		next.connect(t, probed).HandleHealthReport(true, "")
		next.wantEntries(t, "tills-10.0.0.1=10.0.0.1")
	})
}

func TestRestartRetainsRegistrations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "registered")
		w := newTestRegistrar(t, file)
		w.connect(t, newTillWorkload("10.0.0.1"))
		w.connect(t, newTillWorkload("fd00::2"))
		synctest.Wait()
		w.stop()
		if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("the file is %v, %v", info, err)
		}
		next := startRegistrar(t, w.groups, file)
		next.wantEntries(t, "tills-10.0.0.1=10.0.0.1 tills-fd00--2=fd00::2")
		next.connect(t, newTillWorkload("10.0.0.1"))
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		next.wantEntries(t, "tills-10.0.0.1=10.0.0.1") // the registration of the other workload has expired
	})
}

func TestMembersFollowTheirGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestRegistrar(t, "")
		w.connect(t, newTillWorkload("10.0.0.1"))
		w.groups.Put(groupOf(map[string]string{"tier": "changed"}))
		if got := w.List(config.WorkloadEntry)[0].Spec.(*networking.WorkloadEntry).GetLabels()["tier"]; got != "changed" {
			t.Errorf("the label is %q", got)
		}
		w.groups.Delete(groupKey)
		w.wantEntries(t, "")
		if s := w.Workloads(); len(s) != 1 || !strings.Contains(s[0].Reason, "removed") {
			t.Errorf("the status of the workload is %+v", s)
		}
		w.groups.Put(groupOf(nil))
		w.wantEntries(t, "tills-10.0.0.1=10.0.0.1")
	})
}

func TestWorkloadWithWrongGroupOrAccountIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestRegistrar(t, "")
		other := newTillWorkload("10.0.0.1")
		other.ServiceAccount = "thief"
		unknown := newTillWorkload("10.0.0.1")
		unknown.Group = "safes"
		nobody := newTillWorkload("10.0.0.1")
		nobody.ServiceAccount = ""
		for _, workload := range []Workload{other, unknown, nobody, newTillWorkload("0.0.0.0"), newTillWorkload("fe80::1%eth0"), newTillWorkload("224.0.0.1"), newTillWorkload("::ffff:0.0.0.0"), newTillWorkload("127.0.0.1"), newTillWorkload("::1"), newTillWorkload("169.254.1.1"), newTillWorkload("fe80::1")} {
			if _, err := w.Connect(workload); !errors.Is(err, ErrRefused) {
				t.Errorf("%v: %v", workload, err)
			}
		}
		w.wantEntries(t, "")
	})
}

func TestDamagedFileIsNamedAndReplaced(t *testing.T) {
	for _, content := range []string{"{", `[{"group":"tills","namespace":"shop"}]`, `[{"address":"x"}]`} {
		file := filepath.Join(t.TempDir(), "registered")
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		r := New(Config{Groups: config.NewMemoryStore(), File: file, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		if !strings.Contains(log.String(), file) || len(r.Workloads()) != 0 {
			t.Errorf("%s: %v, %s", content, r.Workloads(), &log)
		}
		if err := r.save(); err != nil {
			t.Error(err)
		}
		if now, err := os.ReadFile(file); string(now) != "[]\n" {
			t.Errorf("the file is %q, %v", now, err)
		}
	}
}
