package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/internal/regularfile"
)

// Limits returns the resource limits of this process. ok is false if there is no limit.
type Limits interface {
	MemoryLimit() (bytes uint64, ok bool)
	CPULimit() (cores float64, ok bool)
}

// maxOverride is the maximum size of a user's bootstrap file.
const maxOverride = 4 << 20

// resolveBootstrap resolves the bootstrap settings other than the proxy's identity and ProxyConfig.
func (r *resolver) resolveBootstrap() {
	b := &r.config.Bootstrap
	b.HostIP = r.env.vars["HOST_IP"]
	if b.HostIP != "" {
		b.HostIP = r.env.address("hostAddress", "HOST_IP").String()
	}
	b.OverrideFile = r.env.vars["ISTIO_BOOTSTRAP_OVERRIDE"]
	b.Override = r.readBootstrapFile("bootstrap.override", b.OverrideFile, "environment ISTIO_BOOTSTRAP_OVERRIDE")
	r.readCustomBootstrap()
	b.GRPCFile = r.env.text("bootstrap.grpcFile", "GRPC_XDS_BOOTSTRAP", defaultGRPCFile, sourceDefault)
	b.Env = func(name string) string { return r.env.vars[name] }
	b.CertDir, b.WorkingDir = r.env.vars["OUTPUT_CERTS"], r.in.WorkingDir
	b.MemoryLimit = r.resolveMemoryLimit()
	b.Tracing = r.resolveTracingProvider()
}

// readCustomBootstrap reads a complete bootstrap from the file of the first setting that is not empty.
func (r *resolver) readCustomBootstrap() {
	b, p := &r.config.Bootstrap, r.config.Proxy
	for _, setting := range []struct{ file, source string }{
		{r.env.vars["ISTIO_BOOTSTRAP"], "environment ISTIO_BOOTSTRAP"},
		{p.GetCustomConfigFile(), "customConfigFile (" + r.merger.source("custom_config_file") + ")"},
		{r.in.Flags.TemplateFile, "flag --templateFile"},
		{p.GetProxyBootstrapTemplatePath(), "proxyBootstrapTemplatePath (" + r.merger.source("proxy_bootstrap_template_path") + ")"},
	} {
		if setting.file == "" {
			continue
		}
		b.CustomFile = setting.file
		b.Custom = r.readBootstrapFile("bootstrap.custom", setting.file, setting.source)
		return
	}
}

// readBootstrapFile returns the content of a user's bootstrap file. An unreadable file is an error, because without it
// the proxy would start with a configuration that the user does not want.
func (r *resolver) readBootstrapFile(setting, file, source string) []byte {
	if file == "" {
		return nil
	}
	r.env.addSetting(setting, file, source)
	data, err := regularfile.Read(file, maxOverride)
	if err != nil {
		r.addError("%s: %w; mount the file, or remove the setting", source, err)
		return nil
	}
	if len(strings.TrimSpace(string(data))) == 0 {
		r.addError("%s: %s is empty; write a bootstrap, or remove the setting", source, file)
	}
	return data
}

// minMemory is the minimum of PROXY_MEMORY_LIMIT. Envoy cannot run with less, so a smaller number probably lacks its unit.
const minMemory = 16 << 20

// resolveMemoryLimit returns the container's memory limit in bytes, from the variable or the control group; 0 for no
// limit.
func (r *resolver) resolveMemoryLimit() uint64 {
	const setting, variable = "bootstrap.memoryLimit", "PROXY_MEMORY_LIMIT"
	if text := r.env.vars[variable]; text != "" {
		n, err := parseBytes(text)
		if err != nil || n > 0 && n < minMemory {
			r.env.addValueError(variable, text, "write a number of bytes of at least 16Mi, such as 256Mi, or 0 for no limit")
		}
		r.env.addSetting(setting, n, "environment "+variable)
		return n
	}
	if r.in.Limits != nil {
		if n, ok := r.in.Limits.MemoryLimit(); ok {
			r.env.addSetting(setting, n, sourceCgroup)
			return n
		}
	}
	r.env.addSetting(setting, "none", sourceDefault)
	return 0
}

// quantityUnits are the suffixes of memory quantities in Kubernetes.
var quantityUnits = map[string]float64{
	"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12,
	"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40,
}

// parseBytes parses a Kubernetes memory quantity.
func parseBytes(text string) (uint64, error) {
	number := strings.TrimRight(text, "kKMGTi")
	scale, known := quantityUnits[text[len(number):]]
	n, err := strconv.ParseFloat(number, 64)
	if bytes := n * scale; err == nil && known && bytes >= 0 && bytes < math.MaxInt64 {
		return uint64(bytes), nil
	}
	return 0, fmt.Errorf("%q is not a number of bytes", text)
}

// resolveTracingProvider returns the mesh's default tracing provider; nil if there is none.
func (r *resolver) resolveTracingProvider() *meshv1.MeshConfig_ExtensionProvider {
	names := r.mesh.GetDefaultProviders().GetTracing()
	if len(names) == 0 {
		return nil
	}
	for _, p := range r.mesh.GetExtensionProviders() {
		if p.GetName() == names[0] {
			r.env.addSetting("tracingProvider", p.GetName(), "mesh file "+r.file)
			r.setMetadataFromEnv(p)
			return p
		}
	}
	r.addError("mesh file %s: defaultProviders.tracing names %q, which is not in extensionProviders; add it there or correct the name", r.file, names[0])
	return nil
}

// setMetadataFromEnv sets the values of the provider's gRPC metadata entries that refer to environment variables. Envoy
// cannot read the variables itself.
func (r *resolver) setMetadataFromEnv(p *meshv1.MeshConfig_ExtensionProvider) {
	for _, h := range p.GetOpentelemetry().GetGrpc().GetInitialMetadata() {
		if value, ok := r.env.vars[h.GetEnvName()]; ok && h.GetEnvName() != "" {
			h.HeaderValue = &meshv1.MeshConfig_ExtensionProvider_HttpHeader_Value{Value: value}
		}
	}
}

// addError adds an error to those that Resolve returns.
func (r *resolver) addError(format string, args ...any) {
	r.env.errs = append(r.env.errs, fmt.Errorf(format, args...))
}
