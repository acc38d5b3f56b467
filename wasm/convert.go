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
)

// ExtensionConfigType is the type of the resources that Rewrite is for: the configurations of single filters (ECDS).
const ExtensionConfigType = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig"

const (
	httpWasmType   = "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm"
	tcpWasmType    = "type.googleapis.com/envoy.extensions.filters.network.wasm.v3.Wasm"
	httpRBACType   = "type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC"
	tcpRBACType    = "type.googleapis.com/envoy.extensions.filters.network.rbac.v3.RBAC"
	structType     = "type.googleapis.com/xds.type.v3.TypedStruct"
	udpaStructType = "type.googleapis.com/udpa.type.v1.TypedStruct" // the same fields under an older name
)

// What an Istio control plane says to the agent by way of the module's environment, and not to the module.
const (
	hintPrefix  = "ISTIO_META_WASM_"
	hintSecret  = hintPrefix + "IMAGE_PULL_SECRET"
	hintPolicy  = hintPrefix + "IMAGE_PULL_POLICY"
	hintVersion = hintPrefix + "PLUGIN_RESOURCE_VERSION"
	// noSum stands for no checksum, where Envoy's API wants one.
	noSum = "nil"
)

// mostFetches bounds the modules of one response that are fetched at the same time.
const mostFetches = 4

// Rewrite has the filters of Wasm modules that are elsewhere load them from a file, in place. A filter whose module
// cannot be had gets a stand-in that lets everything pass or nothing, by its fail policy. An error says that a filter cannot
// be understood. For each filter with a stand-in, again waits until its module can be had after all.
func (m *Modules) Rewrite(ctx context.Context, resources [][]byte) (again []func(context.Context) error, err error) {
	began := m.config.Now()
	errs := make([]error, len(resources))
	again = make([]func(context.Context) error, len(resources))
	turns := make(chan struct{}, mostFetches)
	var all sync.WaitGroup
	for i := range resources {
		f, err := readFilter(resources[i])
		switch {
		case err != nil:
			m.converted(resultOf(err))
			errs[i] = err
		case f.remote() == nil:
			m.converted(resultNoRemote)
			m.keep(f)
		default:
			all.Go(func() {
				turns <- struct{}{}
				defer func() { <-turns }()
				resources[i], again[i], errs[i] = m.convert(ctx, f)
			})
		}
	}
	all.Wait()
	m.metrics.took(m.config.Now().Sub(began))
	return again, errors.Join(errs...)
}

func (m *Modules) converted(result string) { m.metrics.conversions.WithLabelValues(result).Inc() }

var errNoHint = errors.New("it does not say where its module is")

func resultOf(err error) string {
	if errors.Is(err, errNoHint) {
		return resultMissingHint
	}
	return resultMarshal
}

// filter is a resource, with a module that may be elsewhere.
type filter struct {
	resource *corev3.TypedExtensionConfig
	message  proto.Message
	plugin   *wasmv3.PluginConfig
	// typeURL is that of the message.
	typeURL string
}

// readFilter understands a resource as far as that is needed.
func readFilter(resource []byte) (*filter, error) {
	var extension corev3.TypedExtensionConfig
	if err := proto.Unmarshal(resource, &extension); err != nil {
		return nil, fmt.Errorf("reading the configuration of a filter: %w", err)
	}
	f := &filter{resource: &extension}
	if err := f.read(extension.GetTypedConfig()); err != nil {
		return nil, fmt.Errorf("filter %s: %w", extension.GetName(), err)
	}
	if f.remote() != nil && f.remote().GetHttpUri().GetUri() == "" {
		return nil, fmt.Errorf("filter %s: %w", extension.GetName(), errNoHint)
	}
	return f, nil
}

// read finds out which kind of filter it is, and leaves the plugin nil for all but Wasm's.
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

func (f *filter) remote() *corev3.RemoteDataSource {
	return f.plugin.GetVmConfig().GetCode().GetRemote()
}

// keep notes that a filter uses a module that it was given before: the last good configuration says so.
func (m *Modules) keep(f *filter) {
	file := f.plugin.GetVmConfig().GetCode().GetLocal().GetFilename()
	dir, err := filepath.Abs(m.config.Dir)
	if err != nil || file == "" {
		return
	}
	if path, err := filepath.Rel(dir, file); err == nil && modulePath().MatchString(path) {
		m.once.Do(func() { close(m.used) })
		m.store.use(f.resource.GetName(), path, false)
	}
}

// convert is the resource as Envoy is to get it.
func (m *Modules) convert(ctx context.Context, f *filter) (resource []byte, again func(context.Context) error, err error) {
	module, err := f.module()
	if err != nil {
		m.converted(resultFetch)
		return nil, nil, fmt.Errorf("filter %s: %w", f.resource.GetName(), err)
	}
	file, stale, err := m.file(ctx, module)
	if err != nil {
		if ctx.Err() != nil {
			return nil, nil, err
		}
		m.converted(resultFetch)
		m.log.Error("a filter's module cannot be had; in its place "+f.meanwhile(), "filter", f.resource.GetName(), "error", err)
		if !errors.Is(err, errBlocked) {
			again = func(ctx context.Context) error { return m.await(ctx, module) }
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
		m.converted(resultMarshal)
		return nil, nil, err
	}
	f.resource.TypedConfig = &anypb.Any{TypeUrl: f.typeURL, Value: value}
	m.converted(resultSuccess)
	if stale != nil && !errors.Is(stale, errBlocked) {
		again = func(ctx context.Context) error { return m.await(ctx, module) }
	}
	resource, err = proto.Marshal(f.resource)
	return resource, again, err
}

// module says which module is wanted, and takes out of the module's environment what is for the agent.
func (f *filter) module() (Module, error) {
	module := Module{
		URL:      f.remote().GetHttpUri().GetUri(),
		SHA256:   f.remote().GetSha256(),
		Timeout:  f.remote().GetHttpUri().GetTimeout().AsDuration(),
		Resource: f.resource.GetName(),
	}
	if module.SHA256 == noSum {
		module.SHA256 = ""
	}
	environment := f.plugin.GetVmConfig().GetEnvironmentVariables()
	hints := environment.GetKeyValues()
	secret, ok := hints[hintSecret]
	if ok && secret == "" {
		return module, errors.New("its pull secret is missing; make the secret that the plugin names, of type kubernetes.io/dockerconfigjson")
	}
	module.Secret, module.Version = []byte(secret), hints[hintVersion]
	module.Always = always(hints[hintPolicy], module.URL)
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

// always says whether the source is asked each time; without a policy, images with the tag latest are.
func always(policy, url string) bool {
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

func (f *filter) open() bool {
	//lint:ignore SA1019 control planes still set the older field
	return f.plugin.GetFailOpen() || f.plugin.GetFailurePolicy() == wasmv3.FailurePolicy_FAIL_OPEN
}

func (f *filter) meanwhile() string {
	if f.open() {
		return "everything passes, by its fail policy"
	}
	return "nothing passes, by its fail policy"
}

// replace puts a stand-in for the module: role based access control without rules, which lets everything pass, or with an
// empty list of what is allowed. The messages are written here by their field numbers, for their types would be the largest
// part of this package.
func (f *filter) replace() {
	standIn := &anypb.Any{TypeUrl: httpRBACType}
	if !f.open() {
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
