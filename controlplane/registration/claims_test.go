package registration

import (
	"bytes"
	"log/slog"
	"maps"
	"net/netip"
	"strings"
	"testing"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

func TestNodeCannotClaimLabelsThatItsGroupDoesNotAllow(t *testing.T) {
	for name, c := range map[string]struct {
		allowed, group, template, claimed, want map[string]string
		overridden                              string
	}{
		"a label of another service": {claimed: map[string]string{"app": "payments"}, want: map[string]string{}, overridden: "app"},
		"a label of the group":       {group: map[string]string{"app": "crawler"}, claimed: map[string]string{"app": "payments"}, want: map[string]string{"app": "crawler"}, overridden: "app"},
		"a label of the template":    {template: map[string]string{"app": "crawler"}, claimed: map[string]string{"app": "payments"}, want: map[string]string{"app": "crawler"}, overridden: "app"},
		"the group's own value":      {group: map[string]string{"app": "crawler"}, claimed: map[string]string{"app": "crawler"}, want: map[string]string{"app": "crawler"}},
		"an allowed label": {
			allowed: map[string]string{config.MemberLabelsAnnotation: "zone, version"}, claimed: map[string]string{"version": "v2"}, want: map[string]string{"version": "v2"},
		},
		"an allowed label that the group sets": {
			allowed: map[string]string{config.MemberLabelsAnnotation: "app"}, group: map[string]string{"app": "crawler"},
			claimed: map[string]string{"app": "payments"}, want: map[string]string{"app": "crawler"}, overridden: "app",
		},
		"a value that is not valid for a label": {
			allowed: map[string]string{config.MemberLabelsAnnotation: "version"}, claimed: map[string]string{"version": strings.Repeat("v", 64)}, want: map[string]string{}, overridden: "version",
		},
		"security and topology, whatever the group allows": {
			allowed: map[string]string{config.MemberLabelsAnnotation: "security.istio.io/tlsMode, topology.istio.io/network, topology.kubernetes.io/zone, networking.istio.io/gatewayPort"},
			claimed: map[string]string{"security.istio.io/tlsMode": "disabled", "topology.istio.io/network": "n", "topology.kubernetes.io/zone": "z", "networking.istio.io/gatewayPort": "1"},
			want:    map[string]string{}, overridden: "topology.kubernetes.io/zone",
		},
	} {
		t.Run(name, func(t *testing.T) {
			groups, log := config.NewMemoryStore(), bytes.Buffer{}
			groups.Put(&config.Resource{Key: groupKey, Annotations: c.allowed, Spec: &networking.WorkloadGroup{
				Metadata: &networking.WorkloadGroup_ObjectMeta{Labels: c.group}, Template: &networking.WorkloadEntry{ServiceAccount: "till", Labels: c.template},
			}})
			r := New(Config{Groups: groups, Logger: slog.New(slog.NewTextHandler(&log, nil))})
			w := newTillWorkload("10.0.0.1")
			w.Labels = c.claimed
			if _, err := r.Connect(w); err != nil {
				t.Fatal(err)
			}
			c.want[tlsModeLabel] = "istio"
			entry := r.List(config.WorkloadEntry)[0]
			if !maps.Equal(entry.Labels, c.want) || !maps.Equal(entry.Spec.(*networking.WorkloadEntry).GetLabels(), c.want) {
				t.Errorf("the labels are %v and %v, want %v", entry.Labels, entry.Spec, c.want)
			}
			shown := strings.Join(r.Workloads()[0].Overridden, "\n")
			if c.overridden == "" && (shown != "" || strings.Contains(log.String(), "overridden")) {
				t.Errorf("overridden: %s, %s", shown, &log)
			}
			if !strings.Contains(shown, c.overridden) || !strings.Contains(log.String(), c.overridden) {
				t.Errorf("the override of %s is not reported: %q, %s", c.overridden, shown, &log)
			}
		})
	}
}

func TestWorkloadRegistersWithTheAddressThatItConnectsFrom(t *testing.T) {
	local := []netip.Prefix{netip.MustParsePrefix("127.77.0.0/16")}
	for name, c := range map[string]struct {
		claimed, source, allowed, want string // want is empty if the registration is refused
		local                          []netip.Prefix
	}{
		"its own": {claimed: "10.0.0.1", source: "10.0.0.1", want: "10.0.0.1"},
		"the workload's own address, IPv4-mapped": {claimed: "10.0.0.1", source: "::ffff:10.0.0.1", want: "10.0.0.1"},
		"another's":                                        {claimed: "10.0.0.2", source: "10.0.0.1", want: "10.0.0.1"},
		"an address that the group allows":                 {claimed: "10.9.1.1", source: "192.0.2.1", allowed: "10.9.1.0/24", want: "10.9.1.1"},
		"the group allows one address":                     {claimed: "10.9.1.1", source: "192.0.2.1", allowed: "10.8.0.0/16, 10.9.1.1", want: "10.9.1.1"},
		"an address that the group does not allow":         {claimed: "10.9.2.1", source: "192.0.2.1", allowed: "10.9.1.0/24", want: "192.0.2.1"},
		"the group's annotation is invalid":                {claimed: "10.9.2.1", source: "192.0.2.1", allowed: "all", want: "192.0.2.1"},
		"loopback":                                         {claimed: "127.0.0.1", source: "127.0.0.1"},
		"loopback, allowed":                                {claimed: "127.0.0.1", source: "10.0.0.1", allowed: "127.0.0.0/8"},
		"link-local, allowed":                              {claimed: "169.254.169.254", source: "10.0.0.1", allowed: "0.0.0.0/0"},
		"from loopback":                                    {claimed: "10.0.0.1", source: "127.0.0.1"},
		"an address of a local mesh":                       {claimed: "127.77.1.1", source: "127.0.0.1", local: local, want: "127.77.1.1"},
		"an address of a local mesh, claimed from outside": {claimed: "127.77.1.1", source: "10.0.0.1", local: local, want: "10.0.0.1"},
		"an address of another local mesh":                 {claimed: "127.78.1.1", source: "127.0.0.1", local: local},
		"no source":                                        {claimed: "10.0.0.1"},
	} {
		t.Run(name, func(t *testing.T) {
			groups := config.NewMemoryStore()
			groups.Put(&config.Resource{
				Key: groupKey, Annotations: map[string]string{config.MemberAddressesAnnotation: c.allowed},
				Spec: &networking.WorkloadGroup{Template: &networking.WorkloadEntry{ServiceAccount: "till"}},
			})
			r := New(Config{Groups: groups, LocalNetworks: c.local})
			w := newTillWorkload(c.claimed)
			w.Source, _ = netip.ParseAddr(c.source)
			got, err := r.Connect(w)
			if (err == nil) != (c.want != "") || err == nil && got.Address.String() != c.want {
				t.Errorf("registered as %v, %v", got, err)
			}
		})
	}
}

func TestWorkloadCannotReplaceTheEntryOfAnotherGroup(t *testing.T) {
	groups := config.NewMemoryStore()
	for _, name := range []string{"tills", "tills-10.0.0.1"} {
		groups.Put(&config.Resource{
			Key:  config.Key{Kind: config.WorkloadGroup, Namespace: "shop", Name: name},
			Spec: &networking.WorkloadGroup{Template: &networking.WorkloadEntry{ServiceAccount: "till"}},
		})
	}
	r := New(Config{Groups: groups})
	first := newTillWorkload("10.0.0.2")
	first.Group = "tills-10.0.0.1"
	if _, err := r.Connect(first); err != nil {
		t.Fatal(err)
	}
	second := newTillWorkload("10.0.0.1")
	second.Network = "10.0.0.2"
	if _, err := r.Connect(second); err == nil || r.Workloads()[0].Group != "tills-10.0.0.1" {
		t.Errorf("another workload replaced the entry: %v, %v", r.Workloads(), err)
	}
}

func TestMemberIsOutdatedWhenGroupForbidsItsAddress(t *testing.T) {
	groups := config.NewMemoryStore()
	groups.Put(groupOf(nil))
	r := New(Config{Groups: groups})
	w := newTillWorkload("10.9.0.1")
	w.Source = netip.MustParseAddr("192.0.2.1")
	registered, err := r.Connect(w)
	if err != nil || registered.IsOutdated() {
		t.Fatalf("registered: %v, %v", registered, err)
	}
	edited := *groupOf(nil)
	edited.Annotations = nil
	groups.Put(&edited)
	if !registered.IsOutdated() {
		t.Error("the workload stays registered with an address that the group no longer allows")
	}
}
