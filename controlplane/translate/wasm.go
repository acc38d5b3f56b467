package translate

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	httprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	httpwasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/wasm/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	networkrbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	networkwasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/wasm/v3"
	wasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/wasm/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	extensions "istio.io/api/extensions/v1alpha1"
	typev1beta1 "istio.io/api/type/v1beta1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// pluginPrefix is the prefix of WasmPlugin configuration names, as in Istio.
const pluginPrefix = "extensions.istio.io/wasmplugin/"

// pluginTimeout limits how long a listener waits for a plugin's configuration. pluginFetch limits the time in which an
// agent must fetch the plugin's module.
const (
	pluginTimeout = 20 * time.Second
	pluginFetch   = 30 * time.Second
)

// Environment variables of the Wasm module that contain settings for the agent. The agent removes them before Envoy
// loads the module.
const (
	pullPolicyHint = config.WasmHintPrefix + "IMAGE_PULL_POLICY"
	versionHint    = config.WasmHintPrefix + "PLUGIN_RESOURCE_VERSION"
	pullSecretHint = config.WasmPullSecret
	// noChecksum is the value of the checksum variable if the plugin specifies no checksum.
	noChecksum = "nil"
)

func pluginName(p snapshot.Plugin) string { return pluginPrefix + p.Namespace + "." + p.Name }

func isNetwork(p snapshot.Plugin) bool { return p.Spec.GetType() == extensions.PluginType_NETWORK }

func (v proxyView) plugins() []snapshot.Plugin {
	if !v.cache.pluginsKnown {
		v.cache.plugins, v.cache.pluginsKnown = v.s.Plugins(v.p.Namespace, v.p.Labels), true
	}
	return v.cache.plugins
}

// pluginApplies reports whether a plugin applies to a chain's traffic.
func pluginApplies(p snapshot.Plugin, t traffic) bool {
	if len(p.Spec.GetMatch()) == 0 {
		return true
	}
	return slices.ContainsFunc(p.Spec.GetMatch(), func(m *extensions.WasmPlugin_TrafficSelector) bool {
		mode, direction := m.GetMode(), typev1beta1.WorkloadMode_CLIENT
		if t.side == inboundSide {
			direction = typev1beta1.WorkloadMode_SERVER
		}
		if mode != typev1beta1.WorkloadMode_UNDEFINED && mode != typev1beta1.WorkloadMode_CLIENT_AND_SERVER && mode != direction {
			return false
		}
		return len(m.GetPorts()) == 0 || slices.ContainsFunc(m.GetPorts(), func(port *typev1beta1.PortSelector) bool { return port.GetNumber() == t.port })
	})
}

// extensionSource makes a filter's configuration a separate resource (ECDS). While Envoy does not have this
// configuration, the filter rejects all traffic, unless the plugin fails open.
func extensionSource(p snapshot.Plugin, types []string, open proto.Message) *corev3.ExtensionConfigSource {
	source := ads()
	source.InitialFetchTimeout = duration(pluginTimeout)
	out := &corev3.ExtensionConfigSource{ConfigSource: source, TypeUrls: types}
	if p.Spec.GetFailStrategy() == extensions.FailStrategy_FAIL_OPEN {
		out.DefaultConfig = anyOf(open)
	}
	return out
}

func typeURL(m proto.Message) string {
	return "type.googleapis.com/" + string(m.ProtoReflect().Descriptor().FullName())
}

// pluginFilters returns the filters of the plugins of a phase for HTTP requests. A filter may have one of two types: if
// an agent cannot fetch a module, it replaces the Wasm filter by an RBAC filter.
func (v proxyView) pluginFilters(t traffic, phase extensions.PluginPhase) []*hcmv3.HttpFilter {
	var out []*hcmv3.HttpFilter
	types := []string{typeURL(&httpwasmv3.Wasm{}), typeURL(&httprbacv3.RBAC{})}
	for _, p := range v.plugins() {
		if !isNetwork(p) && p.Spec.GetPhase() == phase && pluginApplies(p, t) {
			out = append(out, &hcmv3.HttpFilter{Name: pluginName(p), ConfigType: &hcmv3.HttpFilter_ConfigDiscovery{
				ConfigDiscovery: extensionSource(p, types, &httprbacv3.RBAC{}),
			}})
		}
	}
	return out
}

// networkPlugins returns the filters of the plugins of the phases for TCP connections.
func (v proxyView) networkPlugins(t traffic, phases ...extensions.PluginPhase) []*listenerv3.Filter {
	var out []*listenerv3.Filter
	types := []string{typeURL(&networkwasmv3.Wasm{}), typeURL(&networkrbacv3.RBAC{})}
	for _, phase := range phases {
		for _, p := range v.plugins() {
			if isNetwork(p) && p.Spec.GetPhase() == phase && pluginApplies(p, t) {
				out = append(out, &listenerv3.Filter{Name: pluginName(p), ConfigType: &listenerv3.Filter_ConfigDiscovery{
					ConfigDiscovery: extensionSource(p, types, &networkrbacv3.RBAC{StatPrefix: "wasm"}),
				}})
			}
		}
	}
	return out
}

// Extensions returns the filter configurations whose names are in names, if the proxy's listeners refer to them. It
// skips unknown names. If names is empty, it returns all filter configurations.
func Extensions(s *snapshot.Snapshot, p *Proxy, names []string) ([]*xds.Resource, error) {
	v := newView(s, p)
	var out []*xds.Resource
	taken := map[string]bool{}
	for _, plugin := range v.plugins() {
		taken[pluginName(plugin)] = true
		if name := pluginName(plugin); len(names) == 0 || slices.Contains(names, name) {
			r, err := v.pluginResource(plugin)
			if err != nil {
				return nil, err
			}
			out = append(out, r)
		}
	}
	patched, err := v.patchedExtensions(func(name string) bool { return !taken[name] && (len(names) == 0 || slices.Contains(names, name)) })
	return append(out, patched...), err
}

// pluginKey contains all values on which a plugin's configuration without a Secret depends.
type pluginKey struct{ resource *config.Resource }

// pluginResource returns a plugin's configuration. It is cached unless it contains a Secret.
func (v proxyView) pluginResource(p snapshot.Plugin) (*xds.Resource, error) {
	secret := v.pullSecret(p)
	build := func() (*xds.Resource, error) {
		return xds.NewResource(pluginName(p), &corev3.TypedExtensionConfig{Name: pluginName(p), TypedConfig: pluginFilter(p, secret)})
	}
	if secret != nil {
		return build()
	}
	return v.s.Cache.Get(pluginKey{p.Resource}, build)
}

// pullSecret returns the content of the Secret that the agent needs to pull a plugin's module. It returns nil if there
// is none, or if the proxy may not use it. The caller has checked that the plugin applies to the proxy.
func (v proxyView) pullSecret(p snapshot.Plugin) []byte {
	if !v.mayHaveSecrets() {
		return nil
	}
	if secret := v.allowedSecret(v.s.PullSecret(p)); secret != nil {
		return secret.Registries
	}
	return nil
}

func pluginFilter(p snapshot.Plugin, secret []byte) *anypb.Any {
	plugin := &wasmv3.PluginConfig{
		Name:          p.Namespace + "." + p.Name,
		RootId:        p.Spec.GetPluginName(),
		Vm:            &wasmv3.PluginConfig_VmConfig{VmConfig: pluginVM(p, secret)},
		FailurePolicy: failurePolicies[p.Spec.GetFailStrategy()],
	}
	if c := p.Spec.GetPluginConfig(); c != nil {
		// The output must be deterministic, but protojson randomizes white space.
		if text, err := (protojson.MarshalOptions{}).Marshal(c); err == nil {
			plugin.Configuration = anyOf(wrapperspb.String(config.CompactJSON(text)))
		}
	}
	if isNetwork(p) {
		return anyOf(&networkwasmv3.Wasm{Config: plugin})
	}
	return anyOf(&httpwasmv3.Wasm{Config: plugin})
}

var failurePolicies = map[extensions.FailStrategy]wasmv3.FailurePolicy{
	extensions.FailStrategy_FAIL_CLOSE:  wasmv3.FailurePolicy_FAIL_CLOSED,
	extensions.FailStrategy_FAIL_OPEN:   wasmv3.FailurePolicy_FAIL_OPEN,
	extensions.FailStrategy_FAIL_RELOAD: wasmv3.FailurePolicy_FAIL_RELOAD,
}

func pluginVM(p snapshot.Plugin, secret []byte) *wasmv3.VmConfig {
	vm := &wasmv3.VmConfig{Runtime: "envoy.wasm.runtime.v8", EnvironmentVariables: &wasmv3.EnvironmentVariables{KeyValues: map[string]string{}}}
	for _, e := range p.Spec.GetVmConfig().GetEnv() {
		if e.GetValueFrom() == extensions.EnvValueSource_HOST {
			vm.EnvironmentVariables.HostEnvKeys = append(vm.EnvironmentVariables.HostEnvKeys, e.GetName())
		} else {
			vm.EnvironmentVariables.KeyValues[e.GetName()] = e.GetValue()
		}
	}
	url := p.Spec.GetUrl()
	if !strings.Contains(url, "://") {
		url = "oci://" + url
	}
	if path, ok := strings.CutPrefix(url, "file://"); ok {
		vm.Code = &corev3.AsyncDataSource{Specifier: &corev3.AsyncDataSource_Local{
			Local: &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: path}},
		}}
		return vm
	}
	vm.EnvironmentVariables.KeyValues[versionHint] = pluginVersion(p)
	if policy := p.Spec.GetImagePullPolicy(); policy != extensions.PullPolicy_UNSPECIFIED_POLICY {
		vm.EnvironmentVariables.KeyValues[pullPolicyHint] = policy.String()
	}
	if secret != nil {
		vm.EnvironmentVariables.KeyValues[pullSecretHint] = string(secret)
	}
	vm.Code = &corev3.AsyncDataSource{Specifier: &corev3.AsyncDataSource_Remote{Remote: &corev3.RemoteDataSource{
		HttpUri: &corev3.HttpUri{Uri: url, Timeout: duration(pluginFetch), HttpUpstreamType: &corev3.HttpUri_Cluster{Cluster: "_"}},
		Sha256:  orElse(p.Spec.GetSha256(), noChecksum),
	}}}
	return vm
}

// pluginVersion returns a value that changes when the plugin changes. An agent with pull policy Always then fetches the
// module again.
func pluginVersion(p snapshot.Plugin) string {
	sum := sha256.Sum256(anyOf(p.Spec).GetValue())
	return hex.EncodeToString(sum[:8])
}
