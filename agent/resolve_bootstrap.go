package agent

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/bootstrap"
	"github.com/pilotfish-mesh/pilotfish/internal/plainfile"
)

// Limits are what the machine lets this process use; false where it does not bound it.
type Limits interface {
	MemoryLimit() (bytes uint64, ok bool)
	CPULimit() (cores float64, ok bool)
}

// mostOverride is how large a bootstrap that somebody else wrote may be.
const mostOverride = 4 << 20

// bootstrapSettings are what changes the bootstrap besides the proxy's identity and ProxyConfig.
func (r *resolver) bootstrapSettings() {
	b := &r.config.Bootstrap
	b.HostIP = r.env.vars["HOST_IP"]
	if b.HostIP != "" {
		b.HostIP = r.env.address("hostAddress", "HOST_IP").String()
	}
	b.OverrideFile = r.env.vars["ISTIO_BOOTSTRAP_OVERRIDE"]
	b.Override = r.bootstrapFile("bootstrap.override", b.OverrideFile, "environment ISTIO_BOOTSTRAP_OVERRIDE")
	r.customBootstrap()
	b.GRPCFile = r.env.text("bootstrap.grpcFile", "GRPC_XDS_BOOTSTRAP", defaultGRPCFile, sourceDefault)
	b.Env = func(name string) string { return r.env.vars[name] }
	b.CertDir, b.WorkingDir = r.env.vars["OUTPUT_CERTS"], r.in.WorkingDir
	b.MemoryLimit = r.memoryLimit()
	b.Tracing = r.tracingProvider()
}

// customBootstrap takes a whole bootstrap from the first of the places that name one.
func (r *resolver) customBootstrap() {
	b, p := &r.config.Bootstrap, r.config.Proxy
	for _, place := range []struct{ file, source string }{
		{r.env.vars["ISTIO_BOOTSTRAP"], "environment ISTIO_BOOTSTRAP"},
		{p.GetCustomConfigFile(), "customConfigFile (" + r.layers.source("custom_config_file") + ")"},
		{r.in.Flags.TemplateFile, "flag --templateFile"},
		{p.GetProxyBootstrapTemplatePath(), "proxyBootstrapTemplatePath (" + r.layers.source("proxy_bootstrap_template_path") + ")"},
	} {
		if place.file == "" {
			continue
		}
		b.CustomFile = place.file
		b.Custom = r.bootstrapFile("bootstrap.custom", place.file, place.source)
		return
	}
}

// bootstrapFile reads a file that is part of the bootstrap. A proxy that started without it would not be the one that its
// owner wanted, so one that cannot be read stops the start.
func (r *resolver) bootstrapFile(setting, file, source string) []byte {
	if file == "" {
		return nil
	}
	r.env.note(setting, file, source)
	data, err := plainfile.Read(file, mostOverride)
	if err != nil {
		r.fail("%s: %w; mount the file, or take the setting away", source, err)
		return nil
	}
	if len(strings.TrimSpace(string(data))) == 0 {
		r.fail("%s: %s is empty; write a bootstrap, or take the setting away", source, file)
	}
	return data
}

// leastMemory is less than any Envoy lives on: who names less has left out the unit.
const leastMemory = 16 << 20

// memoryLimit is what the whole of the container may use, by the variable or by the control group; 0 for no limit.
func (r *resolver) memoryLimit() uint64 {
	const setting, variable = "bootstrap.memoryLimit", "PROXY_MEMORY_LIMIT"
	if text := r.env.vars[variable]; text != "" {
		n, err := parseBytes(text)
		if err != nil || n > 0 && n < leastMemory {
			r.env.refuse(variable, text, "write a number of bytes that Envoy can live on, as 256Mi, or 0 for no limit")
		}
		r.env.note(setting, n, "environment "+variable)
		return n
	}
	if r.in.Limits != nil {
		if n, ok := r.in.Limits.MemoryLimit(); ok {
			r.env.note(setting, n, sourceCgroup)
			return n
		}
	}
	r.env.note(setting, "none", sourceDefault)
	return 0
}

// units are those of Kubernetes' quantities.
var units = map[string]float64{
	"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12,
	"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40,
}

// parseBytes reads a Kubernetes quantity of memory.
func parseBytes(text string) (uint64, error) {
	number := strings.TrimRight(text, "kKMGTi")
	scale, known := units[text[len(number):]]
	n, err := strconv.ParseFloat(number, 64)
	if bytes := n * scale; err == nil && known && bytes >= 0 && bytes < math.MaxInt64 {
		return uint64(bytes), nil
	}
	return 0, fmt.Errorf("%q is not a number of bytes", text)
}

// tracingProvider is the mesh's default for proxies that have no tracing of their own.
func (r *resolver) tracingProvider() *meshv1.MeshConfig_ExtensionProvider {
	names := r.mesh.GetDefaultProviders().GetTracing()
	if len(names) == 0 {
		return nil
	}
	for _, p := range r.mesh.GetExtensionProviders() {
		if p.GetName() == names[0] {
			r.env.note("tracingProvider", p.GetName(), "mesh file "+r.file)
			r.metadataFromEnvironment(p)
			return p
		}
	}
	r.fail("mesh file %s: defaultProviders.tracing names %q, which extensionProviders does not have", r.file, names[0])
	return nil
}

// metadataFromEnvironment puts the values of variables into the provider's gRPC metadata, which Envoy sends as they are.
func (r *resolver) metadataFromEnvironment(p *meshv1.MeshConfig_ExtensionProvider) {
	for _, h := range p.GetOpentelemetry().GetGrpc().GetInitialMetadata() {
		if value, ok := r.env.vars[h.GetEnvName()]; ok && h.GetEnvName() != "" {
			h.HeaderValue = &meshv1.MeshConfig_ExtensionProvider_HttpHeader_Value{Value: value}
		}
	}
}

// fail notes an error that is told with all others when everything has been looked at.
func (r *resolver) fail(format string, args ...any) {
	r.env.errs = append(r.env.errs, fmt.Errorf(format, args...))
}

// bootstrapJSON is the bootstrap as people read it.
func bootstrapJSON(c *Config) ([]byte, error) {
	return bootstrap.Render(c.bootstrap(istioVersion))
}

// grpcBootstrap is the file for the application's own gRPC library.
func grpcBootstrap(c *Config) ([]byte, error) {
	return bootstrap.GRPC(c.bootstrap(istioVersion))
}
