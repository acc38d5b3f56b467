package translate_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/controlplane/analysis"
	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/envoyfilter"
	"github.com/pilotfish-mesh/pilotfish/controlplane/translate"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// TestPatchesThatEnvoyWouldRejectAreSkipped: the other patches of the document are applied.
func TestPatchesThatEnvoyWouldRejectAreSkipped(t *testing.T) {
	m := readTopic(t, "envoy-filters").mesh
	for _, description := range readTopic(t, "envoy-filters").proxies {
		listResources(t, m.snap, description)
	}
	var reported []string
	for _, p := range analysis.Check(m.snap) {
		if p.Code == config.PatchSkipped {
			reported = append(reported, p.Field+" "+p.Value+" "+p.Message)
			if p.At.Line == 0 || p.Key.Name != "second" {
				t.Errorf("the finding %s has no line number", p)
			}
		}
	}
	if len(reported) != 2 || !strings.Contains(reported[0], "configPatches[4] 10.1.0.2_3306") || !strings.Contains(reported[0], "not terminal") ||
		!strings.Contains(reported[1], "configPatches[5] 0.0.0.0_9080") {
		t.Errorf("reported: %q", reported)
	}
}

// TestPatchesApplyOnlyToTheirProxy: cached resources are not shared with proxies that have other patches.
func TestPatchesApplyOnlyToTheirProxy(t *testing.T) {
	const filter = `
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: one, namespace: two}
spec:
  workloadSelector: {labels: {app: x}}
  configPatches:
  - {applyTo: CLUSTER, match: {cluster: {service: b.two.svc.cluster.local}}, patch: {operation: MERGE, value: {connect_timeout: 3s}}}
  - {applyTo: HTTP_ROUTE, match: {proxy: {metadata: {NAME: x}}}, patch: {operation: MERGE, value: {stat_prefix: patched}}}
  - {applyTo: VIRTUAL_HOST, match: {proxy: {proxyVersion: "^9"}}, patch: {operation: REMOVE}}
`
	m := newTestMesh(t, nil, affectedMesh)
	const patched, other = "sidecar x.two 127.203.27.1 app=x", "sidecar y.two 127.203.28.1 app=y"
	before := listResources(t, m.snap, other)
	m.apply(filter)
	differing := 0
	now := listResources(t, m.snap, patched)
	for i, r := range listResources(t, m.snap, other) {
		if r != before[i] {
			t.Errorf("%s changed although the patches are for another proxy", r)
		}
		if now[i] != r && !strings.Contains(r, "15080") { // each proxy listens at its own address
			differing++
		}
	}
	if differing != 2 { // the cluster and the route configuration
		t.Errorf("%d resources are patched, want 2", differing)
	}
	shared := func(description string) *xds.Resource {
		got, err := generate(m.snap, proxy(t, description), xds.ClusterType, nil)
		if err != nil || len(got) == 0 {
			t.Fatal(err)
		}
		return got[0]
	}
	if shared(patched) != shared(other) {
		t.Error("the proxies do not share a cluster to which no patch applies")
	}
}

func TestInvalidPatchIsRefused(t *testing.T) {
	for value, want := range map[string]string{
		"{name: x, typed_config: {'@type': type.googleapis.com/istio.stats.Config}}":                                              ".typed_config.@type: no extension of Envoy has this type",
		"{name: x, typed_config: {'@type': type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer, max: 1}}":          ".typed_config.max: Buffer has no such field",
		"{name: x, typed_config: {'@type': type.googleapis.com/envoy.config.filter.http.buffer.v2.Buffer, max_request_bytes: 1}}": ".typed_config.@type: no extension of Envoy has this type",
		"{nam: x}":  ".nam: HttpFilter has no such field",
		"{name: 1}": ".name",
		"{name: x, typed_config: {'@type': type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer}}":                                                                "Envoy would reject the value",
		"{name: x, typed_config: {'@type': type.googleapis.com/udpa.type.v1.TypedStruct, type_url: type.googleapis.com/envoy.extensions.filters.http.nothing.v3.X, value: {}}}": ".typed_config.@type",
	} {
		document := "apiVersion: networking.istio.io/v1alpha3\nkind: EnvoyFilter\nmetadata: {name: f}\nspec:\n  configPatches:\n  - applyTo: HTTP_FILTER\n    patch:\n      operation: INSERT_FIRST\n      value: " + value + "\n"
		resources, problems := config.Parser{Check: envoyfilter.Check}.Parse("f.yaml", []byte(document))
		if len(resources) != 0 || len(problems) != 1 {
			t.Errorf("%s: %d resources, %v", value, len(resources), problems)
			continue
		}
		if text := problems[0].String(); !strings.Contains(text, want) || problems[0].At.Line != 9 {
			t.Errorf("%s: %s", value, text)
		}
	}
}

// TestPatchForNewerEnvoyIsSkipped and reported; types of Envoy's v2 API are refused for all versions.
func TestPatchForNewerEnvoyIsSkipped(t *testing.T) {
	const filter = `
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: young, namespace: two}
spec:
  configPatches:
  - {applyTo: HTTP_FILTER, patch: {operation: INSERT_FIRST, value: {name: marked, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.body_size_limit.v3.BodySizeLimit}}}}
  - {applyTo: HTTP_FILTER, patch: {operation: INSERT_FIRST, value: {name: other, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.cors.v3.Cors}}}}
`
	m := newTestMesh(t, nil, affectedMesh)
	m.apply(filter)
	for _, version := range []string{"1.40.0", "1.36.4"} {
		want := version == "1.40.0"
		listeners, err := generate(m.snap, proxy(t, "sidecar x.two 127.203.27.1 app=x ENVOY_VERSION="+version), xds.ListenerType, nil)
		if err != nil {
			t.Fatal(err)
		}
		all := ""
		for _, l := range listeners {
			all += string(l.Body.GetValue())
		}
		if strings.Contains(all, "marked") != want || !strings.Contains(all, "other") {
			t.Errorf("Envoy %s receives the filter: %t", version, !want)
		}
		if reported := fmt.Sprint(analysis.Check(m.snap)); strings.Contains(reported, "requires Envoy 1.40 or later") == want {
			t.Errorf("problems for Envoy %s: %s", version, reported)
		}
	}
}

// TestSkippedPatchOfSharedResourceIsReported although the resource is built only once. The report ends when the last
// proxy that uses the resource disconnects.
func TestSkippedPatchOfSharedResourceIsReported(t *testing.T) {
	filter := func(before string) string {
		return "apiVersion: networking.istio.io/v1alpha3\nkind: EnvoyFilter\nmetadata: {name: one, namespace: two}\nspec:\n  configPatches:\n" + before +
			"  - {applyTo: CLUSTER, match: {cluster: {service: b.two.svc.cluster.local}}, patch: {operation: MERGE, value: {type: STRICT_DNS}}}\n"
	}
	m := newTestMesh(t, nil, affectedMesh)
	var proxies []*translate.Proxy
	var leave []context.CancelFunc
	for _, description := range []string{"sidecar x.two 127.203.27.1 app=x", "sidecar y.two 127.203.28.1 app=y"} {
		ctx, cancel := context.WithCancel(t.Context())
		p := proxy(t, description)
		p.Disconnected = ctx.Done()
		proxies, leave = append(proxies, p), append(leave, cancel)
	}
	reported := func() (lines []int) {
		for _, p := range analysis.Check(m.snap) {
			if p.Code == config.PatchSkipped {
				lines = append(lines, p.At.Line)
			}
		}
		return lines
	}
	generateAll := func() {
		for _, p := range proxies {
			if _, err := generate(m.snap, p, xds.ClusterType, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	m.apply(filter(""))
	generateAll()
	if got := reported(); !slices.Equal(got, []int{6}) {
		t.Fatalf("the skipped patch is reported at lines %v, want 6", got)
	}
	m.apply(filter("  - {applyTo: CLUSTER, match: {cluster: {service: none.example}}, patch: {operation: REMOVE}}\n"))
	generateAll()
	if got := reported(); !slices.Equal(got, []int{7}) {
		t.Fatalf("with another patch in the document: reported at lines %v", got)
	}
	for i := range proxies {
		if len(reported()) == 0 {
			t.Errorf("the skipped patch is not reported with %d of %d proxies disconnected", i, len(proxies))
		}
		leave[i]()
	}
	if got := reported(); len(got) != 0 {
		t.Errorf("the skipped patch is reported at lines %v although all proxies are disconnected", got)
	}
}
