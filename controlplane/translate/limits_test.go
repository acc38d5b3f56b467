package translate

import (
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	networking "istio.io/api/networking/v1alpha3"
)

func TestHashTableSizesAreValid(t *testing.T) {
	for given, want := range map[uint64]uint64{0: 0, 1: 2, 4: 5, 65537: 65537, 65538: 65539, 1 << 40: 5_000_011} {
		if got := primeFrom(given); got != want {
			t.Errorf("a table size of %d becomes %d, want %d", given, got, want)
		}
	}
	cluster := &clusterv3.Cluster{}
	setConsistentHash(cluster, &networking.LoadBalancerSettings_ConsistentHashLB{
		HashAlgorithm: &networking.LoadBalancerSettings_ConsistentHashLB_RingHash_{
			RingHash: &networking.LoadBalancerSettings_ConsistentHashLB_RingHash{MinimumRingSize: 1 << 40},
		},
	})
	if got := cluster.GetRingHashLbConfig().GetMinimumRingSize().GetValue(); got != 8<<20 {
		t.Errorf("the minimum ring size is %d, want Envoy's maximum", got)
	}
}

func TestHeaderValuesAreCommandsOrLiteral(t *testing.T) {
	for given, want := range map[string]string{
		"":                       "",
		"plain":                  "plain",
		"%PROTOCOL%":             "%PROTOCOL%",
		"a %REQ(x-y?z):10% b":    "a %REQ(x-y?z):10% b",
		"%START_TIME(%s.%3f)%":   "%START_TIME(%s.%3f)%",
		"100%":                   "100%%",
		"100%%":                  "100%%",
		"%%%":                    "%%%%",
		"%REQ()% %REQ%":          "%%REQ()%% %%REQ%%",
		"%UNKNOWN%":              "%%UNKNOWN%%",
		"50% of %RESPONSE_CODE%": "50%% of %RESPONSE_CODE%",
		"%PROTOCOL(x)%":          "%%PROTOCOL(x)%%",
	} {
		if got := headerFormat(given); got != want {
			t.Errorf("%q becomes %q, want %q", given, got, want)
		}
	}
}
