package envoyfilter

import (
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
)

// TestLastFilterMustBeRouter: a filter with a discovered configuration can be the last only if it may be the router: Envoy accepts the listener,
// but permanently rejects the configuration later.
func TestLastFilterMustBeRouter(t *testing.T) {
	last := func(types ...string) *hcmv3.HttpConnectionManager {
		return &hcmv3.HttpConnectionManager{HttpFilters: []*hcmv3.HttpFilter{{Name: "late", ConfigType: &hcmv3.HttpFilter_ConfigDiscovery{
			ConfigDiscovery: &corev3.ExtensionConfigSource{TypeUrls: types},
		}}}}
	}
	if err := checkConnectionManager(last("type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua")); err == nil || !strings.Contains(err.Error(), `"late" is the last`) {
		t.Errorf("a script as the last filter: %v", err)
	}
	if err := checkConnectionManager(last(routerType)); err != nil {
		t.Errorf("a router that comes by itself: %v", err)
	}
}
