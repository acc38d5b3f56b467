package translate

import (
	"testing"

	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

func TestValidName(t *testing.T) {
	for _, c := range []struct {
		typeURL, name string
		valid         bool
	}{
		{xds.EndpointType, "outbound|80||a.b.svc.cluster.local", true},
		{xds.EndpointType, "outbound|80|v1|a", true},
		{xds.EndpointType, localCluster, true},
		{xds.EndpointType, "outbound|eighty||a", false},
		{xds.EndpointType, "outbound|70000||a", false},
		{xds.EndpointType, "junk", false},
		{xds.ClusterType, "outbound|80||a", true},
		{xds.ClusterType, "of-an-envoyfilter", true},
		{xds.ClusterType, "outbound|80", false},
		{xds.ClusterType, "a\nb", false},
		{xds.ClusterType, "", false},
		{xds.SecretType, "kubernetes://site-cacert", true},
		{xds.SecretType, "site", false},
		{xds.VirtualHostType, "80/a.b", true},
		{xds.VirtualHostType, "a.b", false},
		{xds.RouteType, "80", true},
		{xds.ListenerType, "xds.istio.io/grpc/lds/inbound/0.0.0.0:80", true},
	} {
		if got := ValidName(c.typeURL, c.name); got != c.valid {
			t.Errorf("ValidName(%s, %q) = %v", xds.ShortType(c.typeURL), c.name, got)
		}
	}
}
