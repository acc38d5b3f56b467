package wasm

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	typev3 "github.com/cncf/xds/go/xds/type/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	httprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	httpwasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/wasm/v3"
	tcprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	tcpwasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/wasm/v3"
	wasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/wasm/v3"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// plugin returns the configuration of a module at a URL, with the control plane's hints in its environment.
func plugin(url, sum string, environment map[string]string) *wasmv3.PluginConfig {
	vm := &wasmv3.VmConfig{
		VmId: "test", Runtime: "envoy.wasm.runtime.v8",
		Code: &corev3.AsyncDataSource{Specifier: &corev3.AsyncDataSource_Remote{Remote: &corev3.RemoteDataSource{
			HttpUri: &corev3.HttpUri{Uri: url, Timeout: durationpb.New(5 * time.Second), HttpUpstreamType: &corev3.HttpUri_Cluster{Cluster: "_"}},
			Sha256:  sum,
		}}},
	}
	if environment != nil {
		vm.EnvironmentVariables = &wasmv3.EnvironmentVariables{KeyValues: environment}
	}
	return &wasmv3.PluginConfig{Name: "test", Vm: &wasmv3.PluginConfig_VmConfig{VmConfig: vm}}
}

func packed(t testing.TB, message proto.Message) *anypb.Any {
	t.Helper()
	a, err := anypb.New(message)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func extension(t testing.TB, name string, config *anypb.Any) []byte {
	t.Helper()
	b, err := proto.Marshal(&corev3.TypedExtensionConfig{Name: name, TypedConfig: config})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// rewritten returns the resource that Rewrite produces for one filter.
func rewritten(t testing.TB, m *Modules, resource []byte) *anypb.Any {
	t.Helper()
	all := [][]byte{resource}
	if _, err := m.Rewrite(context.Background(), all); err != nil {
		t.Fatal(err)
	}
	var e corev3.TypedExtensionConfig
	if err := proto.Unmarshal(all[0], &e); err != nil || e.Name != "f" {
		t.Fatalf("%v, name %q", err, e.Name)
	}
	return e.TypedConfig
}

func loose(t testing.TB, message proto.Message) *anypb.Any {
	t.Helper()
	text, err := protojson.Marshal(message)
	if err != nil {
		t.Fatal(err)
	}
	value := &structpb.Struct{}
	if err := protojson.Unmarshal(text, value); err != nil {
		t.Fatal(err)
	}
	return packed(t, &typev3.TypedStruct{TypeUrl: httpWasmType, Value: value})
}

func TestFiltersLoadModuleFromFile(t *testing.T) {
	o := serve(t, gives(tiny))
	m := running(t, nil)
	environment := map[string]string{hintPolicy: "Always", hintVersion: "7", hintSecret: "{}", "MINE": "1"}
	old := loose(t, &httpwasmv3.Wasm{Config: plugin(o.URL, noSum, environment)})
	udpa := proto.Clone(old).(*anypb.Any)
	udpa.TypeUrl = udpaStructType
	for name, config := range map[string]*anypb.Any{
		"http":         packed(t, &httpwasmv3.Wasm{Config: plugin(o.URL, noSum, environment)}),
		"network":      packed(t, &tcpwasmv3.Wasm{Config: plugin(o.URL, sumOf(tiny), environment)}),
		"struct":       old,
		"older struct": udpa,
	} {
		got := rewritten(t, m, extension(t, "f", config))
		var p *wasmv3.PluginConfig
		switch got.TypeUrl {
		case httpWasmType:
			message := &httpwasmv3.Wasm{}
			_ = proto.Unmarshal(got.Value, message)
			p = message.GetConfig()
		case tcpWasmType:
			message := &tcpwasmv3.Wasm{}
			_ = proto.Unmarshal(got.Value, message)
			p = message.GetConfig()
		}
		file := p.GetVmConfig().GetCode().GetLocal().GetFilename()
		if b, err := os.ReadFile(file); err != nil || string(b) != string(tiny) {
			t.Errorf("%s: %s %v: %v", name, got.TypeUrl, err, p)
		}
		if left := p.GetVmConfig().GetEnvironmentVariables().GetKeyValues(); len(left) != 1 || left["MINE"] != "1" {
			t.Errorf("%s: the module's environment is %v", name, left)
		}
	}
	if n := testutil.ToFloat64(m.metrics.conversions.WithLabelValues(resultSuccess)); n != 4 {
		t.Errorf("%v conversions are counted", n)
	}
}

func TestOtherFiltersAreNotChanged(t *testing.T) {
	local := plugin("", "", nil)
	local.GetVmConfig().Code = &corev3.AsyncDataSource{Specifier: &corev3.AsyncDataSource_Local{Local: &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: tiny}}}}
	m := running(t, nil)
	for name, config := range map[string]*anypb.Any{
		"a router": packed(t, &routerv3.Router{SuppressEnvoyHeaders: true}), "a module within": packed(t, &httpwasmv3.Wasm{Config: local}), "nothing": nil,
	} {
		before := extension(t, "f", config)
		all := [][]byte{append([]byte{}, before...)}
		if _, err := m.Rewrite(context.Background(), all); err != nil || string(all[0]) != string(before) {
			t.Errorf("%s was changed, or %v", name, err)
		}
	}
}

func TestFilterWithoutModuleIsReplacedAccordingToFailPolicy(t *testing.T) {
	o := serve(t, fails(http.StatusNotFound))
	m := running(t, nil)
	open := plugin(o.URL, noSum, nil)
	open.FailurePolicy = wasmv3.FailurePolicy_FAIL_OPEN
	older := plugin(o.URL, noSum, nil)
	//lint:ignore SA1019 control planes still set the older field
	older.FailOpen = true
	closed := plugin(o.URL, noSum, nil)
	for name, c := range map[string]struct {
		p      *wasmv3.PluginConfig
		passes bool
	}{"open": {open, true}, "open by the older field": {older, true}, "closed": {closed, false}} {
		overHTTP, overTCP := &httprbacv3.RBAC{}, &tcprbacv3.RBAC{}
		if err := rewritten(t, m, extension(t, "f", packed(t, &httpwasmv3.Wasm{Config: c.p}))).UnmarshalTo(overHTTP); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := rewritten(t, m, extension(t, "f", packed(t, &tcpwasmv3.Wasm{Config: c.p}))).UnmarshalTo(overTCP); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if c.passes != (overHTTP.Rules == nil) || c.passes != (overTCP.Rules == nil) || overHTTP.Validate() != nil || overTCP.Validate() != nil {
			t.Errorf("%s: %v, %v", name, overHTTP, overTCP)
		}
	}
}

func TestInvalidFiltersAreRejectedByName(t *testing.T) {
	m := running(t, nil)
	for name, c := range map[string]struct {
		config *anypb.Any
		says   string
	}{
		"no URL":      {packed(t, &httpwasmv3.Wasm{Config: plugin("", noSum, nil)}), "location of the module"},
		"no secret":   {packed(t, &httpwasmv3.Wasm{Config: plugin("oci://r.example/a:v1", noSum, map[string]string{hintSecret: ""})}), "dockerconfigjson"},
		"garbage":     {&anypb.Any{TypeUrl: httpWasmType, Value: []byte{0xff}}, "reading"},
		"odd struct":  {&anypb.Any{TypeUrl: structType, Value: []byte{0xff}}, "reading"},
		"wrong field": {packed(t, &typev3.TypedStruct{TypeUrl: httpWasmType, Value: &structpb.Struct{Fields: map[string]*structpb.Value{"config": structpb.NewNumberValue(1)}}}), "reading"},
	} {
		_, err := m.Rewrite(context.Background(), [][]byte{extension(t, "named", c.config)})
		if err == nil || !strings.Contains(err.Error(), "named") || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzRewrite(f *testing.F) {
	f.Add(extension(f, "f", packed(f, &httpwasmv3.Wasm{Config: plugin("ftp://nowhere/", noSum, nil)})))
	f.Add(extension(f, "f", loose(f, &httpwasmv3.Wasm{Config: plugin("ftp://nowhere/", noSum, map[string]string{hintSecret: "x"})})))
	f.Fuzz(func(t *testing.T, resource []byte) {
		filter, err := readFilter(resource)
		if err != nil || filter.remoteSource() == nil {
			return
		}
		if module, err := filter.module(); err == nil && module.URL == "" {
			t.Fatal("a filter without a module URL was accepted")
		}
		filter.replace()
	})
}

func TestUnavailableModuleIsFetchedAgain(t *testing.T) {
	o := serve(t, fails(http.StatusNotFound))
	m := running(t, func(c *Config) { c.RetryInterval = time.Millisecond })
	var reported string
	m.ReportMissing(func(reason string) { reported = reason })
	filter := func() [][]byte {
		return [][]byte{extension(t, "named", packed(t, &httpwasmv3.Wasm{Config: plugin(o.URL+"/m.wasm", "nil", nil)}))}
	}
	all := filter()
	again, err := m.Rewrite(context.Background(), all)
	if err != nil || again[0] == nil || !strings.Contains(string(all[0]), "rbac") {
		t.Fatalf("%q, %v: want a placeholder and a retry", all[0], err)
	}
	o.now(func(w http.ResponseWriter, r *http.Request) {
		if o.requests.Load() < 4 {
			fails(http.StatusNotFound)(w, r)
			return
		}
		gives(tiny)(w, r)
	})
	if err := again[0](context.Background()); err != nil || o.requests.Load() != 4 {
		t.Errorf("after %d requests: %v", o.requests.Load(), err)
	}
	if reported != "" {
		t.Errorf("reported after the fetch: %q", reported)
	}
	all = filter()
	if again, err = m.Rewrite(context.Background(), all); err != nil || again[0] != nil || strings.Contains(string(all[0]), "rbac") {
		t.Errorf("%q, %v: want the module", all[0], err)
	}
}

func TestWaitForModuleEndsWithContext(t *testing.T) {
	o := serve(t, fails(http.StatusNotFound))
	m := running(t, func(c *Config) { c.RetryInterval = time.Hour })
	var reported string
	m.ReportMissing(func(reason string) { reported = reason })
	again, err := m.Rewrite(context.Background(), [][]byte{
		extension(t, "none", packed(t, &httpwasmv3.Wasm{Config: plugin(o.URL, "nil", nil)})),
		extension(t, "blocked", packed(t, &httpwasmv3.Wasm{Config: plugin("http://169.254.169.254/", "nil", nil)})),
	})
	if err != nil || again[0] == nil || again[1] == nil {
		t.Fatalf("%v: want a retry for both", err)
	}
	for _, name := range []string{"none", "blocked"} {
		if want := "the Wasm module of filter " + name + " cannot be fetched, so all requests are refused (fail policy): "; !strings.Contains(reported, want) {
			t.Errorf("reported: %q, want %q", reported, want)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- cmp.Or(again[1](ctx), again[0](ctx)) }()
	go func() { ended <- again[0](ctx) }()
	testenv.Eventually(t, "one filter waits for its module", func() error {
		if n := testutil.ToFloat64(m.metrics.waiting); n != 1 {
			return fmt.Errorf("%v filters wait", n)
		}
		return nil
	})
	cancel()
	for range 2 {
		if err := <-ended; err == nil {
			t.Error("no error after the context was canceled")
		}
	}
	if n := testutil.ToFloat64(m.metrics.waiting); n != 0 || reported != "" {
		t.Errorf("%v filters wait, reported: %q", n, reported)
	}
}

// A module with the policy Always is served from the cache while its source fails, and is replaced when the source
// recovers.
func TestCachedModuleIsRefreshedWhenItsSourceRecovers(t *testing.T) {
	o := serve(t, gives(tiny))
	m := running(t, func(c *Config) { c.RetryInterval = time.Millisecond; c.Retries = -1 })
	convert := func(version string) (resource string, again func(context.Context) error) {
		t.Helper()
		hints := map[string]string{hintPolicy: "Always", hintVersion: version}
		all := [][]byte{extension(t, "named", packed(t, &httpwasmv3.Wasm{Config: plugin(o.URL+"/m.wasm", "", hints)}))}
		waits, err := m.Rewrite(context.Background(), all)
		if err != nil {
			t.Fatal(err)
		}
		return string(all[0]), waits[0]
	}
	if resource, again := convert("1"); again != nil || !strings.Contains(resource, sumOf(tiny)) {
		t.Fatalf("got %q, want the first module", resource)
	}
	o.now(fails(http.StatusNotFound))
	resource, again := convert("2")
	if again == nil || !strings.Contains(resource, sumOf(tiny)) {
		t.Fatalf("got %q, want the cached module and a retry", resource)
	}
	o.now(gives(other))
	if err := again(context.Background()); err != nil {
		t.Fatal(err)
	}
	if resource, again := convert("2"); again != nil || !strings.Contains(resource, sumOf(other)) {
		t.Errorf("got %q, want the new module", resource)
	}
}
