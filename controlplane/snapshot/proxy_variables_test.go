package snapshot

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const tenantProxyConfig = `apiVersion: networking.istio.io/v1beta1
kind: ProxyConfig
metadata: {name: x, namespace: NAMESPACE}
spec:
  environmentVariables:
    ISTIO_META_TEAM: books
    MINIMUM_DRAIN_DURATION: 3s
    AGENT_DUMPABLE: "true"
    CA_ADDR: evil.example:15012
    ENVOY_NO_NEW_PRIVS: "false"
    ENVOY_PATH: /tmp/envoy
    GODEBUG: http2debug=2
    GUARD_AGENT_SOCKETS: "false"
    ISTIO_METAJSON_X: '{"APP_ADDRESS": "127.0.0.2"}'
    ISTIO_META_APP_ADDRESS: 127.0.0.2
    ISTIO_META_NAMESPACE: istio-system
    ISTIO_META_PUBLISH: 80=0.0.0.0:80
    ISTIO_META_TLS_CLIENT_KEY: /etc/key
    LD_PRELOAD: /tmp/x.so
    PATH: /tmp
    STATUS_PORT_USERS: any
    XDS_HEADER_AUTHORIZATION: x
    unknown: x
`

func TestTenantsSetOnlyHarmlessVariables(t *testing.T) {
	tenant := newTestMesh(t, nil, strings.Replace(tenantProxyConfig, "NAMESPACE", "shop", 1))
	want := map[string]string{"ISTIO_META_TEAM": "books", "MINIMUM_DRAIN_DURATION": "3s"}
	if diff := cmp.Diff(want, tenant.ProxyConfig("shop", nil).GetEnvironmentVariables()); diff != "" {
		t.Errorf("a tenant's variables (-want +got):\n%s", diff)
	}
	root := newTestMesh(t, nil, strings.Replace(tenantProxyConfig, "NAMESPACE", "istio-system", 1))
	if got := root.ProxyConfig("shop", nil).GetEnvironmentVariables(); len(got) != 18 {
		t.Errorf("the root namespace sets %v", got)
	}
}

func TestTenantVariablesAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/settings.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "## Variables in a ProxyConfig\n")
	section, _, _ = strings.Cut(section, "\n## ")
	documented := strings.Count(section, "`") / 2
	for _, name := range slices.Concat(tenantVariables, platformMetadata) {
		if !strings.Contains(section, "`"+name+"`") {
			t.Errorf("docs/settings.md does not list %s", name)
		}
	}
	const others = 6                                                                           // environmentVariables, POD_NAME, CA_ADDR, ProxyConfig twice, ISTIO_META_…
	if want := len(tenantVariables) + len(platformMetadata) + others + 1; documented != want { // and TLS_…
		t.Errorf("docs/settings.md lists %d names, want %d", documented, want)
	}
}
