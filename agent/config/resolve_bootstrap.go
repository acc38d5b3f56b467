package config

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/bootstrap"
	"github.com/pilotfish-mesh/pilotfish/internal/regularfile"
)

// Limits returns the resource limits of this process. ok is false if a resource has no limit.
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
	if ip := r.env.address("hostAddress", "HOST_IP"); ip.IsValid() {
		b.HostIP = ip.String()
	}
	r.readOverride()
	r.readCustomBootstrap()
	b.GRPCFile = r.env.text("bootstrap.grpcFile", "GRPC_XDS_BOOTSTRAP", defaultGRPCFile, sourceDefault)
	b.Env = func(name string) string { return r.env.vars[name] }
	b.CertDir, b.WorkingDir = r.env.vars["OUTPUT_CERTS"], r.in.WorkingDir
	b.MemoryLimit = r.resolveMemoryLimit()
	b.Tracing = r.resolveTracingProvider()
	r.resolveStatsd()
}

// resolveStatsd replaces the host name in statsdUdpAddress by an IP address, because Envoy does not resolve names of statsd
// servers. As in Istio, the proxy starts without statistics over statsd if the address is not usable.
func (r *resolver) resolveStatsd() {
	address := r.config.Proxy.GetStatsdUdpAddress()
	if address == "" {
		return
	}
	resolved, err := r.lookupStatsd(bootstrap.ExpandHostIP(address, r.config.Bootstrap.HostIP))
	if err != nil {
		r.env.warn("statsdUdpAddress (%s): %q: %v; Envoy sends no statistics over statsd", r.merger.source("statsd_udp_address"), address, err)
	}
	r.config.Proxy.StatsdUdpAddress = resolved
}

func (r *resolver) lookupStatsd(address string) (string, error) {
	host, port, err := net.SplitHostPort(address)
	if _, portErr := parsePort(port); err != nil || portErr != nil {
		return "", errors.New("write host:port, such as 10.1.2.3:8125")
	}
	if _, err := netip.ParseAddr(host); err == nil || r.in.LookupHost == nil {
		return address, nil
	}
	ips, err := r.in.LookupHost(host)
	if err != nil || len(ips) == 0 {
		return "", fmt.Errorf("cannot resolve the host %s: %v", host, err)
	}
	ip := ips[0].Unmap()
	if i := slices.IndexFunc(ips, func(a netip.Addr) bool { return a.Unmap().Is4() }); i >= 0 {
		ip = ips[i].Unmap()
	}
	return net.JoinHostPort(ip.String(), port), nil
}

// readOverride reads the bootstrap override. As in Istio, the proxy starts without an override that is not readable.
func (r *resolver) readOverride() {
	b, file := &r.config.Bootstrap, r.env.vars["ISTIO_BOOTSTRAP_OVERRIDE"]
	if file == "" {
		return
	}
	data, err := readBootstrapFile(file)
	if err != nil {
		r.env.warn("environment ISTIO_BOOTSTRAP_OVERRIDE: %v; the override has no effect", err)
		return
	}
	r.env.addSetting("bootstrap.override", file, "environment ISTIO_BOOTSTRAP_OVERRIDE")
	b.OverrideFile, b.Override = file, data
}

// readCustomBootstrap reads a complete bootstrap from a file. Several settings can specify the file; the first that is
// not empty applies.
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
		r.env.addSetting("bootstrap.custom", setting.file, setting.source)
		data, err := readBootstrapFile(setting.file)
		if err != nil {
			r.addError("%s: %w", setting.source, err)
		}
		b.CustomFile, b.Custom = setting.file, data
		return
	}
}

// readBootstrapFile returns the content of a user's bootstrap file. A missing or empty file is an error.
func readBootstrapFile(file string) ([]byte, error) {
	data, err := regularfile.Read(file, maxOverride)
	if err != nil {
		return nil, fmt.Errorf("%w: mount the file, or remove the setting", err)
	}
	if len(strings.TrimSpace(string(data))) == 0 {
		return nil, fmt.Errorf("%s is empty: write a bootstrap, or remove the setting", file)
	}
	return data, nil
}

// minMemory is the minimum of PROXY_MEMORY_LIMIT. Envoy cannot run with less, and a smaller number probably lacks its
// unit.
const minMemory = 16 << 20

// resolveMemoryLimit returns the container's memory limit in bytes, from the variable or the cgroup. It returns 0 if
// there is no limit.
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

// resolveTracingProvider returns the mesh's default tracing provider, or nil if there is none.
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
	r.env.warn("mesh file %s: defaultProviders.tracing names %q, which is not in extensionProviders; add it there or correct the name; the bootstrap has no tracing provider", r.file, names[0])
	return nil
}

// setMetadataFromEnv sets the gRPC metadata entries of p that refer to environment variables, because Envoy cannot read
// the variables itself.
func (r *resolver) setMetadataFromEnv(p *meshv1.MeshConfig_ExtensionProvider) {
	for _, h := range p.GetOpentelemetry().GetGrpc().GetInitialMetadata() {
		if value, ok := r.env.vars[h.GetEnvName()]; ok && h.GetEnvName() != "" {
			h.HeaderValue = &meshv1.MeshConfig_ExtensionProvider_HttpHeader_Value{Value: value}
		}
	}
}

// addError adds an error to the errors that Resolve returns.
func (r *resolver) addError(format string, args ...any) {
	r.env.errs = append(r.env.errs, fmt.Errorf(format, args...))
}
