package config

import "strings"

// noStatusPort is the annotation value that disables the status port.
const noStatusPort = "0"

// statsAnnotation is the prefix of the annotations that select Envoy's statistics. Package bootstrap applies these
// annotations. This package only adds them to the list of settings.
const statsAnnotation = "sidecar.istio.io/stats"

// applyAnnotations applies the pod's annotations to ProxyConfig. Annotations that set a single value override the
// annotation proxy.istio.io/config.
func (r *resolver) applyAnnotations() error {
	a := r.config.Identity.Annotations
	for _, name := range sortedKeys(a) {
		if strings.HasPrefix(name, statsAnnotation) || name == "sidecar.istio.io/extraStatTags" {
			r.env.addSetting(strings.TrimPrefix(name, "sidecar.istio.io/"), a[name], "annotation "+name)
		}
	}
	if err := r.mergeProxyConfigYAML(a["proxy.istio.io/config"], sourceAnnotation); err != nil {
		return err
	}
	if v := a["sidecar.istio.io/discoveryAddress"]; v != "" {
		r.merger.merged.DiscoveryAddress = v
		r.merger.sources["discovery_address"] = "annotation sidecar.istio.io/discoveryAddress"
	}
	if v := a["status.sidecar.istio.io/port"]; v != "" {
		r.applyStatusPort(v)
	}
	return nil
}

func (r *resolver) applyStatusPort(text string) {
	const annotation = "annotation status.sidecar.istio.io/port"
	port, err := parsePort(text)
	if err != nil && text != noStatusPort {
		r.env.warn("%s: %q: write a port from 1 to 65535, or 0 for none; the value has no effect", annotation, text)
		return
	}
	r.merger.merged.StatusPort = port
	r.merger.sources["status_port"] = annotation
}
