package envoyfilter

import (
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
)

// TestLastFilterMustBeRouter: an HTTP filter whose configuration is discovered may be the last filter only if it may
// turn out to be the router. Envoy would accept the listener, but later reject the configuration every time.
func TestLastFilterMustBeRouter(t *testing.T) {
	last := func(types ...string) *hcmv3.HttpConnectionManager {
		return &hcmv3.HttpConnectionManager{HttpFilters: []*hcmv3.HttpFilter{{Name: "late", ConfigType: &hcmv3.HttpFilter_ConfigDiscovery{
			ConfigDiscovery: &corev3.ExtensionConfigSource{TypeUrls: types},
		}}}}
	}
	if err := checkConnectionManager(last("type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua")); err == nil || !strings.Contains(err.Error(), `the last HTTP filter "late"`) {
		t.Errorf("the check accepts a Lua filter as the last filter: %v", err)
	}
	if err := checkConnectionManager(last(routerType)); err != nil {
		t.Errorf("the check refuses a router whose configuration is discovered: %v", err)
	}
}
