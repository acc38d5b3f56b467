package agent

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	httpwasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/wasm/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcpwasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/wasm/v3"
	wasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/wasm/v3"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// teapot is a Wasm module that responds to each request with status 418: proxy_on_request_headers calls
// proxy_send_local_response.
const teapot = "AGFzbQEAAAABIQVgAX8Bf2AAAGACf38AYAN/f38Bf2AIf39/f39/f38BfwIhAQNlbnYZcHJveHlfc2VuZF9sb2NhbF9yZXNwb25zZQAEAwUEAAECAwUDAQABB2IFF3Byb3h5X2FiaV92ZXJzaW9uXzBfMl8xAAIGbWFsbG9jAAEGbWVtb3J5AgAXcHJveHlfb25fY29udGV4dF9jcmVhdGUAAxhwcm94eV9vbl9yZXF1ZXN0X2hlYWRlcnMABAolBAQAQQALAgALAgALGABBogNBAEEAQQBBAEEAQQBBfxAAGkEBCw=="

// moduleServers are an HTTP server, an HTTPS server, and a registry with a pull secret. Each serves teapot.
type moduleServers struct {
	plain, secured, images *httptest.Server
	image                  string // without oci://
	// lateAvailable is set when the file late.wasm exists.
	lateAvailable atomic.Bool
}

const registryPassword = "hunter2"

func serveTeapots(t *testing.T) *moduleServers {
	t.Helper()
	module, err := base64.StdEncoding.DecodeString(teapot)
	if err != nil {
		t.Fatal(err)
	}
	m := &moduleServers{}
	give := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/late") && !m.lateAvailable.Load() {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		_, _ = w.Write(module)
	})
	m.plain, m.secured = httptest.NewServer(give), httptest.NewTLSServer(give)
	store := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	m.images = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, password, _ := r.BasicAuth(); r.Method == http.MethodGet && password != registryPassword {
			w.Header().Set("WWW-Authenticate", `Basic realm="images"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		store.ServeHTTP(w, r)
	}))
	t.Cleanup(m.stop)
	m.image = m.images.Listener.Addr().String() + "/teapot:v1"
	image, err := mutate.AppendLayers(empty.Image, static.NewLayer(module, "application/vnd.module.wasm.content.layer.v1+wasm"))
	if err != nil {
		t.Fatal(err)
	}
	ref, err := name.ParseReference(m.image)
	if err != nil {
		t.Fatal(err)
	}
	// The transport of the test's own client adds the password.
	if err := remote.Write(ref, image, remote.WithTransport(withPassword{m.images.Client().Transport})); err != nil {
		t.Fatal(err)
	}
	return m
}

func (m *moduleServers) stop() {
	m.plain.Close()
	m.secured.Close()
	m.images.Close()
}

type withPassword struct{ next http.RoundTripper }

func (w withPassword) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.SetBasicAuth("me", registryPassword)
	return w.next.RoundTrip(r)
}

// wasmFilter returns a filter with the module at a URL, in the form of an Istio control plane.
func wasmFilter(url, secret string, policy wasmv3.FailurePolicy) *anypb.Any {
	vm := &wasmv3.VmConfig{
		Runtime: "envoy.wasm.runtime.v8",
		Code: &corev3.AsyncDataSource{Specifier: &corev3.AsyncDataSource_Remote{Remote: &corev3.RemoteDataSource{
			HttpUri: &corev3.HttpUri{Uri: url, Timeout: durationpb.New(30e9), HttpUpstreamType: &corev3.HttpUri_Cluster{Cluster: "_"}},
			Sha256:  "nil",
		}}},
	}
	if secret != "" {
		vm.EnvironmentVariables = &wasmv3.EnvironmentVariables{KeyValues: map[string]string{"ISTIO_META_WASM_IMAGE_PULL_SECRET": secret}}
	}
	return mustAny(&httpwasmv3.Wasm{Config: &wasmv3.PluginConfig{
		Name: "test", RootId: "test", FailurePolicy: policy, Vm: &wasmv3.PluginConfig_VmConfig{VmConfig: vm},
	}})
}

// withFilter returns a plaintext listener that answers 200 behind a filter from ECDS.
func withFilter(t *testing.T, from *listenerv3.Listener, filter string, port uint32) *listenerv3.Listener {
	t.Helper()
	l := proto.Clone(from).(*listenerv3.Listener)
	l.Name = "wasm-" + filter
	l.Address.GetSocketAddress().PortSpecifier = &corev3.SocketAddress_PortValue{PortValue: port}
	chain := l.FilterChains[0]
	chain.TransportSocket = nil
	var hcm hcmv3.HttpConnectionManager
	if err := chain.Filters[0].GetTypedConfig().UnmarshalTo(&hcm); err != nil {
		t.Fatal(err)
	}
	hcm.HttpFilters = append([]*hcmv3.HttpFilter{{Name: filter, ConfigType: &hcmv3.HttpFilter_ConfigDiscovery{ConfigDiscovery: &corev3.ExtensionConfigSource{
		ConfigSource: &corev3.ConfigSource{ResourceApiVersion: corev3.ApiVersion_V3, ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}}},
		TypeUrls: []string{
			"type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm", "type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC",
		},
	}}}}, hcm.HttpFilters...)
	chain.Filters[0].ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: mustAny(&hcm)}
	return l
}

// prependNetworkFilter returns a listener with a network filter from ECDS before its other filters.
func prependNetworkFilter(from *listenerv3.Listener, filter string) *listenerv3.Listener {
	l := proto.Clone(from).(*listenerv3.Listener)
	l.Name = "wasm-" + filter
	first := &listenerv3.Filter{Name: filter, ConfigType: &listenerv3.Filter_ConfigDiscovery{ConfigDiscovery: &corev3.ExtensionConfigSource{
		ConfigSource: &corev3.ConfigSource{ResourceApiVersion: corev3.ApiVersion_V3, ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}}},
		TypeUrls: []string{
			"type.googleapis.com/envoy.extensions.filters.network.wasm.v3.Wasm", "type.googleapis.com/envoy.extensions.filters.network.rbac.v3.RBAC",
		},
	}}}
	chain := l.FilterChains[0]
	chain.Filters = append([]*listenerv3.Filter{first}, chain.Filters...)
	return l
}

// networkFilter returns a network filter that runs the module at a URL.
func networkFilter(t *testing.T, url string) *anypb.Any {
	t.Helper()
	var like httpwasmv3.Wasm
	if err := wasmFilter(url, "", wasmv3.FailurePolicy_FAIL_CLOSED).UnmarshalTo(&like); err != nil {
		t.Fatal(err)
	}
	return mustAny(&tcpwasmv3.Wasm{Config: like.Config})
}

func TestLateWasmModulesReachEnvoyInBothProtocols(t *testing.T) {
	t.Parallel()
	for i, delta := range []string{"true", "false"} {
		t.Run("delta "+delta, func(t *testing.T) {
			t.Parallel()
			s := newSetup(t, fmt.Sprintf("127.164.1.%d", i+1))
			servers := serveTeapots(t)
			s.cp.filters = map[string]*anypb.Any{
				"late":     wasmFilter(servers.plain.URL+"/late.wasm", "", wasmv3.FailurePolicy_FAIL_CLOSED),
				"open":     wasmFilter(servers.plain.URL+"/late-too.wasm", "", wasmv3.FailurePolicy_FAIL_OPEN),
				"net":      networkFilter(t, servers.plain.URL+"/teapot.wasm"),
				"net-late": networkFilter(t, servers.plain.URL+"/late.wasm"),
			}
			plain := withFilter(t, s.cp.listener, "late", 8081)
			s.cp.more = []*listenerv3.Listener{plain, withFilter(t, s.cp.listener, "open", 8082)}
			withPort := func(l *listenerv3.Listener, port uint32) *listenerv3.Listener {
				l.Address.GetSocketAddress().PortSpecifier = &corev3.SocketAddress_PortValue{PortValue: port}
				return l
			}
			for filter, port := range map[string]uint32{"net": 8083, "net-late": 8084} {
				s.cp.more = append(s.cp.more, withPort(prependNetworkFilter(withFilter(t, s.cp.listener, "open", port), filter), port))
			}
			s.env = append(s.env, "WASM_INSECURE_REGISTRIES=127.0.0.1", "WASM_MODULE_DIR="+filepath.Join(s.dir, "modules"),
				"WASM_RETRY_INTERVAL=200ms", "ISTIO_DELTA_XDS="+delta)
			r := s.startReady(t)
			r.waitAnswers("late", "8081", 403)
			r.waitAnswers("open", "8082", 200)
			r.waitAnswers("net", "8083", 200)
			if code, _, err := r.http("GET", "8084/"); err == nil {
				t.Errorf("net-late answers %d without its module", code)
			}
			servers.lateAvailable.Store(true)
			for _, port := range []string{"8081", "8082", "8083", "8084"} {
				r.waitAnswers("each, with its module,", port, 418)
			}
			if _, stats, err := r.http("GET", "15000/config_dump"); err != nil || !strings.Contains(stats, "filters.network.wasm") {
				t.Errorf("no network filter with a module: %v", err)
			}
		})
	}
}

// waitAnswers waits until a listener answers with a status.
func (r *agentProcess) waitAnswers(filter, port string, want int) {
	r.t.Helper()
	r.eventually(fmt.Sprintf("%s answers %d", filter, want), func() error {
		code, body, err := r.http("GET", port+"/")
		if err == nil && code != want {
			err = fmt.Errorf("it answers %d %q", code, body)
		}
		return err
	})
}

var moduleCases = []struct {
	filter, port string
	number       uint32
	code         int
}{
	{"http", "8081", 8081, 418}, {"https", "8082", 8082, 418}, {"oci", "8083", 8083, 418},
	{"open", "8084", 8084, 200}, {"closed", "8085", 8085, 403}, {"metadata", "8086", 8086, 403},
}

// The Envoy version between these, in its Python distribution, has no V8.
func TestEnvoyRunsModulesThatTheAgentFetches(t *testing.T) {
	t.Parallel()
	for i, version := range []string{testenv.EnvoyVersion, testenv.OldEnvoyVersion} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			s := newSetup(t, fmt.Sprintf("127.154.1.%d", i+1))
			servers := s.withModules(t, version)
			stop := s.cp.start(t)
			r := s.start(t)
			r.waitReady()
			for _, c := range moduleCases {
				r.waitAnswers(c.filter, c.port, c.code)
			}
			if _, dump, err := r.http("GET", "15000/config_dump"); err != nil || strings.Contains(dump, registryPassword) || !strings.Contains(dump, ".wasm") {
				t.Errorf("Envoy's configuration, %d bytes, %v: not as expected", len(dump), err)
			}
			if version == testenv.EnvoyVersion {
				s.checkModulesSurvive(t, r, servers, stop)
			}
		})
	}
}

// withModules makes the control plane send filters with modules from the test's servers.
func (s *agentSetup) withModules(t *testing.T, version string) *moduleServers {
	servers := serveTeapots(t)
	secret := fmt.Sprintf(`{"auths": {%q: {"username": "me", "password": %q}}}`, servers.images.Listener.Addr(), registryPassword)
	s.cp.filters = map[string]*anypb.Any{
		"http":     wasmFilter(servers.plain.URL+"/teapot.wasm", "", wasmv3.FailurePolicy_FAIL_CLOSED),
		"https":    wasmFilter(servers.secured.URL+"/teapot.wasm", "", wasmv3.FailurePolicy_FAIL_CLOSED),
		"oci":      wasmFilter("oci://"+servers.image, secret, wasmv3.FailurePolicy_FAIL_CLOSED),
		"open":     wasmFilter("oci://"+servers.image, "", wasmv3.FailurePolicy_FAIL_OPEN), // without the secret
		"closed":   wasmFilter("oci://"+servers.image+"-none", secret, wasmv3.FailurePolicy_FAIL_CLOSED),
		"metadata": wasmFilter("http://169.254.169.254/latest", "", wasmv3.FailurePolicy_FAIL_CLOSED),
	}
	for _, c := range moduleCases {
		s.cp.more = append(s.cp.more, withFilter(t, s.cp.listener, c.filter, c.number))
	}
	s.env = append(s.env, "ENVOY_PATH="+testenv.EnvoyOf(t, version), "WASM_INSECURE_REGISTRIES=127.0.0.1", "WASM_MODULE_DIR="+filepath.Join(s.dir, "modules"))
	return servers
}

// checkModulesSurvive stops control plane, servers and agent, and checks that a new agent's Envoy still runs the
// modules.
func (s *agentSetup) checkModulesSurvive(t *testing.T, r *agentProcess, servers *moduleServers, stop func()) {
	r.waitStored()
	r.signal(os.Interrupt)
	r.waitExit()
	stop()
	servers.stop()
	again := s.start(t)
	for _, c := range moduleCases[:3] {
		again.waitAnswers(c.filter, c.port, c.code)
	}
	err := filepath.WalkDir(s.dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		if text, err := os.ReadFile(path); err == nil && strings.Contains(string(text), registryPassword) {
			return errors.New(path + " has the pull secret")
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
