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

// pluginPrefix begins the names of the configurations of WasmPlugins, as Istio has them.
const pluginPrefix = "extensions.istio.io/wasmplugin/"

// pluginTimeout is how long a listener waits for a plugin's configuration, and pluginFetch how long an agent for its module.
const (
	pluginTimeout = 20 * time.Second
	pluginFetch   = 30 * time.Second
)

// What agents are told of a module by way of its environment, where they take it out again.
const (
	pullPolicyHint = config.WasmHintPrefix + "IMAGE_PULL_POLICY"
	versionHint    = config.WasmHintPrefix + "PLUGIN_RESOURCE_VERSION"
	pullSecretHint = config.WasmPullSecret
	// noChecksum stands for none.
	noChecksum = "nil"
)

func pluginName(p snapshot.Plugin) string { return pluginPrefix + p.Namespace + "." + p.Name }

func isNetwork(p snapshot.Plugin) bool { return p.Spec.GetType() == extensions.PluginType_NETWORK }

func (v view) plugins() []snapshot.Plugin {
	if !v.told.pluginsKnown {
		v.told.plugins, v.told.pluginsKnown = v.s.Plugins(v.p.Namespace, v.p.Labels), true
	}
	return v.told.plugins
}

// takes says whether a plugin is for a chain's traffic.
func takes(p snapshot.Plugin, t traffic) bool {
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

// discovered says that a filter's configuration comes by itself. What stays without it lets nothing pass, unless it was to
// be open when it fails.
func discovered(p snapshot.Plugin, types []string, open proto.Message) *corev3.ExtensionConfigSource {
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

// pluginFilters are the plugins of a phase for requests. An agent that cannot get a module puts a filter of the other type
// in its place.
func (v view) pluginFilters(t traffic, phase extensions.PluginPhase) []*hcmv3.HttpFilter {
	var out []*hcmv3.HttpFilter
	types := []string{typeURL(&httpwasmv3.Wasm{}), typeURL(&httprbacv3.RBAC{})}
	for _, p := range v.plugins() {
		if !isNetwork(p) && p.Spec.GetPhase() == phase && takes(p, t) {
			out = append(out, &hcmv3.HttpFilter{Name: pluginName(p), ConfigType: &hcmv3.HttpFilter_ConfigDiscovery{
				ConfigDiscovery: discovered(p, types, &httprbacv3.RBAC{}),
			}})
		}
	}
	return out
}

// networkPlugins are the plugins of some phases for connections.
func (v view) networkPlugins(t traffic, phases ...extensions.PluginPhase) []*listenerv3.Filter {
	var out []*listenerv3.Filter
	types := []string{typeURL(&networkwasmv3.Wasm{}), typeURL(&networkrbacv3.RBAC{})}
	for _, phase := range phases {
		for _, p := range v.plugins() {
			if isNetwork(p) && p.Spec.GetPhase() == phase && takes(p, t) {
				out = append(out, &listenerv3.Filter{Name: pluginName(p), ConfigType: &listenerv3.Filter_ConfigDiscovery{
					ConfigDiscovery: discovered(p, types, &networkrbacv3.RBAC{StatPrefix: "wasm"}),
				}})
			}
		}
	}
	return out
}

// Extensions are the named configurations of filters that the proxy's listeners refer to; names that lead nowhere are left
// out. No names at all: all.
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

// pluginKey is all that a plugin's configuration depends on, where no Secret is in it.
type pluginKey struct{ resource *config.Resource }

// pluginResource is kept for all proxies, unless a Secret is in it: that is made for each anew.
func (v view) pluginResource(p snapshot.Plugin) (*xds.Resource, error) {
	secret := v.registries(p)
	build := func() (*xds.Resource, error) {
		return xds.NewResource(pluginName(p), &corev3.TypedExtensionConfig{Name: pluginName(p), TypedConfig: pluginFilter(p, secret)})
	}
	if secret != nil {
		return build()
	}
	return v.s.Cache.Get(pluginKey{p.Resource}, build)
}

// registries is the Secret that a plugin's module is pulled with, if the proxy proved to be one that may have it. (That the
// plugin is for the proxy was seen to before.)
func (v view) registries(p snapshot.Plugin) []byte {
	if !v.mayHaveSecrets() {
		return nil
	}
	if secret := v.own(v.s.Registries(p)); secret != nil {
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
		// The order of fields has to be the same each time; blanks are not, in what protojson writes.
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

// pluginVersion changes whenever the plugin does: then an agent asks for the module anew, if it is to be pulled always.
func pluginVersion(p snapshot.Plugin) string {
	sum := sha256.Sum256(anyOf(p.Spec).GetValue())
	return hex.EncodeToString(sum[:8])
}
