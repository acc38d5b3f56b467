package wasm

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"

	typev3 "github.com/cncf/xds/go/xds/type/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	httpwasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/wasm/v3"
	tcpwasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/wasm/v3"
	wasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/wasm/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/pilotfish-mesh/pilotfish/internal/fetchguard"
)

// ExtensionConfigType is the type URL of the resources that Rewrite changes: the configurations of single filters
// (ECDS).
const ExtensionConfigType = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig"

const (
	httpWasmType   = "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm"
	tcpWasmType    = "type.googleapis.com/envoy.extensions.filters.network.wasm.v3.Wasm"
	httpRBACType   = "type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC"
	tcpRBACType    = "type.googleapis.com/envoy.extensions.filters.network.rbac.v3.RBAC"
	structType     = "type.googleapis.com/xds.type.v3.TypedStruct"
	udpaStructType = "type.googleapis.com/udpa.type.v1.TypedStruct" // the same fields under an older name
)

// Settings that an Istio control plane sends to the agent in the module's environment. The module does not see them.
const (
	hintPrefix  = "ISTIO_META_WASM_"
	hintSecret  = hintPrefix + "IMAGE_PULL_SECRET"
	hintPolicy  = hintPrefix + "IMAGE_PULL_POLICY"
	hintVersion = hintPrefix + "PLUGIN_RESOURCE_VERSION"
	// noSum means "no checksum", because Envoy's API requires a value.
	noSum = "nil"
)

// maxFetches limits the concurrent fetches for one response.
const maxFetches = 4

// Rewrite changes resources in place: filters with a remote Wasm module load it from a file. If a module cannot be
// fetched, a placeholder replaces the filter, which allows or denies everything according to the filter's fail policy.
// For such a filter, or one with an outdated module, again[i] waits until the module can be fetched. Rewrite returns an
// error if a filter is invalid.
func (m *Modules) Rewrite(ctx context.Context, resources [][]byte) (again []func(context.Context) error, err error) {
	began := m.config.Now()
	errs := make([]error, len(resources))
	again = make([]func(context.Context) error, len(resources))
	turns := make(chan struct{}, maxFetches)
	var all sync.WaitGroup
	for i := range resources {
		f, err := readFilter(resources[i])
		switch {
		case err != nil:
			m.countConversion(resultOf(err))
			errs[i] = err
		case f.remoteSource() == nil:
			m.countConversion(resultNoRemote)
			m.recordUse(f)
		default:
			all.Go(func() {
				turns <- struct{}{}
				defer func() { <-turns }()
				resources[i], again[i], errs[i] = m.convert(ctx, f)
			})
		}
	}
	all.Wait()
	m.metrics.observeDuration(m.config.Now().Sub(began))
	return again, errors.Join(errs...)
}

func (m *Modules) countConversion(result string) { m.metrics.conversions.WithLabelValues(result).Inc() }

var errNoHint = errors.New("it does not specify the location of its module")

func resultOf(err error) string {
	if errors.Is(err, errNoHint) {
		return resultMissingHint
	}
	return resultMarshal
}

// filter is an ECDS resource, whose Wasm module may be remote.
type filter struct {
	resource *corev3.TypedExtensionConfig
	message  proto.Message
	plugin   *wasmv3.PluginConfig
	// typeURL is the type URL of message.
	typeURL string
}

// readFilter parses the parts of a resource that concern Wasm modules.
func readFilter(resource []byte) (*filter, error) {
	var extension corev3.TypedExtensionConfig
	if err := proto.Unmarshal(resource, &extension); err != nil {
		return nil, fmt.Errorf("reading the configuration of a filter: %w", err)
	}
	f := &filter{resource: &extension}
	if err := f.read(extension.GetTypedConfig()); err != nil {
		return nil, fmt.Errorf("filter %s: %w", extension.GetName(), err)
	}
	if f.remoteSource() != nil && f.remoteSource().GetHttpUri().GetUri() == "" {
		return nil, fmt.Errorf("filter %s: %w", extension.GetName(), errNoHint)
	}
	return f, nil
}

// read parses the configuration of a Wasm filter. For other filters, plugin remains nil.
func (f *filter) read(config *anypb.Any) error {
	f.typeURL = config.GetTypeUrl()
	var loose *typev3.TypedStruct
	if f.typeURL == structType || f.typeURL == udpaStructType {
		loose = &typev3.TypedStruct{}
		if err := proto.Unmarshal(config.GetValue(), loose); err != nil {
			return fmt.Errorf("reading its configuration: %w", err)
		}
		f.typeURL = loose.GetTypeUrl()
	}
	var plugin func() *wasmv3.PluginConfig
	switch f.typeURL {
	case httpWasmType:
		message := &httpwasmv3.Wasm{}
		f.message, plugin = message, message.GetConfig
	case tcpWasmType:
		message := &tcpwasmv3.Wasm{}
		f.message, plugin = message, message.GetConfig
	default:
		return nil
	}
	err := proto.Unmarshal(config.GetValue(), f.message)
	if loose != nil {
		var text []byte
		if text, err = protojson.Marshal(loose.GetValue()); err == nil {
			err = protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(text, f.message)
		}
	}
	if err != nil {
		return fmt.Errorf("reading its configuration: %w", err)
	}
	f.plugin = plugin()
	return nil
}

func (f *filter) remoteSource() *corev3.RemoteDataSource {
	return f.plugin.GetVmConfig().GetCode().GetRemote()
}

// recordUse records that a filter uses a cached module, as the last accepted configuration specifies.
func (m *Modules) recordUse(f *filter) {
	file := f.plugin.GetVmConfig().GetCode().GetLocal().GetFilename()
	dir, err := filepath.Abs(m.config.Dir)
	if err != nil || file == "" {
		return
	}
	if path, err := filepath.Rel(dir, file); err == nil && modulePath().MatchString(path) {
		m.once.Do(func() { close(m.used) })
		m.store.recordUse(f.resource.GetName(), path, false)
	}
}

// convert returns the resource for Envoy.
func (m *Modules) convert(ctx context.Context, f *filter) (resource []byte, again func(context.Context) error, err error) {
	module, err := f.module()
	if err != nil {
		m.countConversion(resultFetch)
		return nil, nil, fmt.Errorf("filter %s: %w", f.resource.GetName(), err)
	}
	file, stale, err := m.file(ctx, module)
	if err != nil {
		if ctx.Err() != nil {
			return nil, nil, err
		}
		m.countConversion(resultFetch)
		m.log.Error("a filter's module cannot be fetched; until then, "+f.describePlaceholder(), "filter", f.resource.GetName(), "error", err)
		if !errors.Is(err, fetchguard.ErrBlocked) {
			again = func(ctx context.Context) error { return m.waitForModule(ctx, module) }
		}
		f.replace()
		resource, err = proto.Marshal(f.resource)
		return resource, again, err
	}
	f.plugin.GetVmConfig().Code = &corev3.AsyncDataSource{Specifier: &corev3.AsyncDataSource_Local{
		Local: &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: file}},
	}}
	value, err := proto.Marshal(f.message)
	if err != nil {
		m.countConversion(resultMarshal)
		return nil, nil, err
	}
	f.resource.TypedConfig = &anypb.Any{TypeUrl: f.typeURL, Value: value}
	m.countConversion(resultSuccess)
	if stale != nil && !errors.Is(stale, fetchguard.ErrBlocked) {
		again = func(ctx context.Context) error { return m.waitForModule(ctx, module) }
	}
	resource, err = proto.Marshal(f.resource)
	return resource, again, err
}

// module returns the module that the filter needs, and removes the agent's settings from the module's environment.
func (f *filter) module() (Module, error) {
	module := Module{
		URL:      f.remoteSource().GetHttpUri().GetUri(),
		SHA256:   f.remoteSource().GetSha256(),
		Timeout:  f.remoteSource().GetHttpUri().GetTimeout().AsDuration(),
		Resource: f.resource.GetName(),
	}
	if module.SHA256 == noSum {
		module.SHA256 = ""
	}
	environment := f.plugin.GetVmConfig().GetEnvironmentVariables()
	hints := environment.GetKeyValues()
	secret, ok := hints[hintSecret]
	if ok && secret == "" {
		return module, errors.New("its pull secret is missing; create the secret that the plugin references, of type kubernetes.io/dockerconfigjson")
	}
	module.Secret, module.Version = []byte(secret), hints[hintVersion]
	module.Always = isAlwaysQueried(hints[hintPolicy], module.URL)
	for name := range hints {
		if strings.HasPrefix(name, hintPrefix) {
			delete(hints, name)
		}
	}
	if environment != nil && len(hints) == 0 && len(environment.GetHostEnvKeys()) == 0 {
		f.plugin.GetVmConfig().EnvironmentVariables = nil
	}
	return module, nil
}

// isAlwaysQueried reports whether the source is queried although the module is cached. Without a policy, this is true for images
// with the tag latest or without a tag.
func isAlwaysQueried(policy, url string) bool {
	switch policy {
	case "Always":
		return true
	case "IfNotPresent":
		return false
	}
	reference, image := strings.CutPrefix(url, "oci://")
	name := reference[strings.LastIndex(reference, "/")+1:]
	return image && (strings.HasSuffix(name, ":latest") || !strings.ContainsAny(name, ":@"))
}

func (f *filter) isFailOpen() bool {
	//lint:ignore SA1019 control planes still set the older field
	return f.plugin.GetFailOpen() || f.plugin.GetFailurePolicy() == wasmv3.FailurePolicy_FAIL_OPEN
}

func (f *filter) describePlaceholder() string {
	if f.isFailOpen() {
		return "all requests pass (fail policy)"
	}
	return "all requests are refused (fail policy)"
}

// replace replaces the filter by a placeholder: an RBAC filter without rules, which allows everything, or with an empty
// list of allowed requests, which denies everything. The messages are encoded here by field number, because their types
// would be the largest part of this package.
func (f *filter) replace() {
	standIn := &anypb.Any{TypeUrl: httpRBACType}
	if !f.isFailOpen() {
		standIn.Value = []byte{1<<3 | 2, 0} // rules: {}
	}
	if f.typeURL == tcpWasmType {
		const prefix = "wasm_stand_in"
		standIn.TypeUrl = tcpRBACType
		standIn.Value = append(standIn.Value, 3<<3|2, byte(len(prefix))) // stat_prefix
		standIn.Value = append(standIn.Value, prefix...)
	}
	f.resource.TypedConfig = standIn
}
