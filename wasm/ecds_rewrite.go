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

// ExtensionConfigType is the type URL of the resources that Rewrite changes: filter configurations in ECDS.
const ExtensionConfigType = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig"

const (
	httpWasmType   = "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm"
	tcpWasmType    = "type.googleapis.com/envoy.extensions.filters.network.wasm.v3.Wasm"
	httpRBACType   = "type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC"
	tcpRBACType    = "type.googleapis.com/envoy.extensions.filters.network.rbac.v3.RBAC"
	structType     = "type.googleapis.com/xds.type.v3.TypedStruct"
	udpaStructType = "type.googleapis.com/udpa.type.v1.TypedStruct" // has the fields of structType
)

// Environment variables of a module that an Istio control plane uses for settings of the agent. The agent removes them.
const (
	hintPrefix  = "ISTIO_META_WASM_"
	hintSecret  = hintPrefix + "IMAGE_PULL_SECRET"
	hintPolicy  = hintPrefix + "IMAGE_PULL_POLICY"
	hintVersion = hintPrefix + "PLUGIN_RESOURCE_VERSION"
	// noSum is the checksum that a control plane sends if none is configured, because Envoy's API requires a value.
	noSum = "nil"
)

// maxFetches limits the concurrent fetches for one response.
const maxFetches = 4

// Rewrite changes ECDS resources in place, so that filters load their remote Wasm modules from local files. If a module
// cannot be fetched, Rewrite replaces the filter by a placeholder, which allows or denies all requests according to the
// filter's fail policy. If resources[i] has a placeholder or an outdated module, retries[i] is a function that blocks
// until the module can be fetched; otherwise it is nil. Rewrite returns an error if a filter is invalid.
func (m *Modules) Rewrite(ctx context.Context, resources [][]byte) (retries []func(context.Context) error, err error) {
	began := m.config.Now()
	errs := make([]error, len(resources))
	retries = make([]func(context.Context) error, len(resources))
	semaphore := make(chan struct{}, maxFetches)
	var all sync.WaitGroup
	for i := range resources {
		f, err := readFilter(resources[i])
		switch {
		case err != nil:
			m.countConversion(conversionResult(err))
			errs[i] = err
		case f.remoteSource() == nil:
			m.countConversion(resultNoRemote)
			m.recordUse(f)
		default:
			all.Go(func() {
				semaphore <- struct{}{}
				defer func() { <-semaphore }()
				resources[i], retries[i], errs[i] = m.convert(ctx, f)
			})
		}
	}
	all.Wait()
	m.metrics.observeDuration(m.config.Now().Sub(began))
	return retries, errors.Join(errs...)
}

func (m *Modules) countConversion(result string) { m.metrics.conversions.WithLabelValues(result).Inc() }

var errNoHint = errors.New("the configuration does not specify the location of the module")

// conversionResult returns the value of the metric's label "result" for an error of readFilter.
func conversionResult(err error) string {
	if errors.Is(err, errNoHint) {
		return resultMissingHint
	}
	return resultMarshal
}

// filter is a decoded ECDS resource. message and plugin are nil unless it is a Wasm filter.
type filter struct {
	resource *corev3.TypedExtensionConfig
	message  proto.Message
	plugin   *wasmv3.PluginConfig
	// typeURL is the type URL of the filter's configuration.
	typeURL string
}

// readFilter decodes an ECDS resource. It fails if the resource is a Wasm filter with a remote module but without a URL.
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

// read decodes the configuration of a Wasm filter, which may be in a TypedStruct. It ignores all other filters.
func (f *filter) read(config *anypb.Any) error {
	f.typeURL = config.GetTypeUrl()
	var typed *typev3.TypedStruct
	if f.typeURL == structType || f.typeURL == udpaStructType {
		typed = &typev3.TypedStruct{}
		if err := proto.Unmarshal(config.GetValue(), typed); err != nil {
			return fmt.Errorf("reading the configuration: %w", err)
		}
		f.typeURL = typed.GetTypeUrl()
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
	if typed != nil {
		var text []byte
		if text, err = protojson.Marshal(typed.GetValue()); err == nil {
			err = protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(text, f.message)
		}
	}
	if err != nil {
		return fmt.Errorf("reading the configuration: %w", err)
	}
	f.plugin = plugin()
	return nil
}

func (f *filter) remoteSource() *corev3.RemoteDataSource {
	return f.plugin.GetVmConfig().GetCode().GetRemote()
}

// recordUse records the use of a cached module by a filter that already refers to the cached file. The last accepted
// configuration contains such filters.
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

// convert fetches the filter's module and returns the resource for Envoy, in which the filter uses the cached file or is
// replaced by a placeholder. retry is nil if the module is current.
func (m *Modules) convert(ctx context.Context, f *filter) (resource []byte, retry func(context.Context) error, err error) {
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
		m.log.Error("a filter's module cannot be fetched; until a fetch succeeds, "+f.describePlaceholder(), "filter", f.resource.GetName(), "error", err)
		retry = m.retryMissing(f, module, err, errors.Is(err, fetchguard.ErrBlocked))
		f.replace()
		resource, err = proto.Marshal(f.resource)
		return resource, retry, err
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
		retry = func(ctx context.Context) error { return m.waitForModule(ctx, module) }
	}
	resource, err = proto.Marshal(f.resource)
	return resource, retry, err
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
		return module, errors.New("the pull secret does not exist; create the secret that the plugin references, of type kubernetes.io/dockerconfigjson")
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

// isAlwaysQueried reports whether the source is queried even if the module is cached. Without a policy, it is queried for
// images with the tag latest and images without a tag.
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

// describePlaceholder describes the effect of the placeholder, for the log.
func (f *filter) describePlaceholder() string {
	if f.isFailOpen() {
		return "all requests pass (fail policy)"
	}
	return "all requests are refused (fail policy)"
}

// replace replaces the filter by a placeholder: an RBAC filter. Without rules it allows all requests. With an empty list
// of allowed requests it denies all. replace encodes the filter by field numbers, because linking Envoy's generated RBAC
// types would make the program larger.
func (f *filter) replace() {
	placeholder := &anypb.Any{TypeUrl: httpRBACType}
	if !f.isFailOpen() {
		placeholder.Value = []byte{1<<3 | 2, 0} // rules: {}
	}
	if f.typeURL == tcpWasmType {
		const prefix = "wasm_stand_in"
		placeholder.TypeUrl = tcpRBACType
		placeholder.Value = append(placeholder.Value, 3<<3|2, byte(len(prefix))) // stat_prefix
		placeholder.Value = append(placeholder.Value, prefix...)
	}
	f.resource.TypedConfig = placeholder
}
