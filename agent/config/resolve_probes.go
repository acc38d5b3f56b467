package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/probe"
)

const (
	probersVariable = "ISTIO_KUBE_APP_PROBERS"
	// maxProberText is the maximum length of ISTIO_KUBE_APP_PROBERS. The kernel's limit for one variable is smaller.
	maxProberText = 1 << 20
	// maxProbeTimeout is the maximum timeout of a probe. Longer ones are shortened to it.
	maxProbeTimeout = 24 * time.Hour
)

// appProber is one probe in the JSON of Istio's injector, with the field names of Kubernetes. The agent ignores its
// headers and hosts: it forwards the headers that the kubelet sends, and always probes the pod itself.
type appProber struct {
	HTTPGet *struct {
		Path        string          `json:"path"`
		Port        json.RawMessage `json:"port"`
		Host        string          `json:"host"`
		Scheme      string          `json:"scheme"`
		HTTPHeaders []struct {
			Name  string `json:"name"`
			Value string `json:"value"`
		} `json:"httpHeaders"`
	} `json:"httpGet"`
	TCPSocket *struct {
		Port json.RawMessage `json:"port"`
		Host string          `json:"host"`
	} `json:"tcpSocket"`
	GRPC *struct {
		Port    json.RawMessage `json:"port"`
		Service *string         `json:"service"`
	} `json:"grpc"`
	TimeoutSeconds int32 `json:"timeoutSeconds"`
}

var appProbePath = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^/(app-health|app-lifecycle)/[^/]+/(livez|readyz|startupz|prestopz|poststartz)$`)
})

// resolveAppProbes resolves the probes of the kubelet that the agent forwards to the application.
func (r *resolver) resolveAppProbes() {
	c := &r.config.AppProbes
	c.HTTP2 = r.env.boolean("appProbes.http2", "ISTIO_ENABLE_HTTP2_PROBING", true)
	c.KeepAlive = r.env.boolean("appProbes.keepAlive", "ENABLE_PROBE_KEEPALIVE_CONNECTIONS", false)
	host := r.resolveProbeHost()
	text := r.env.vars[probersVariable]
	if strings.TrimSpace(text) == "" {
		return
	}
	probers, unknown, err := parseAppProbers(text)
	if err != nil {
		r.addError("environment %s: %w", probersVariable, err)
		return
	}
	if unknown != nil {
		r.env.warn("environment %s: %v; the field has no effect", probersVariable, unknown)
	}
	c.Paths = make(map[string]probe.Spec, len(probers))
	for _, path := range slices.Sorted(maps.Keys(probers)) {
		spec, err := probers[path].spec(host)
		if err == nil {
			err = r.checkNotSelf(spec)
		}
		if err != nil {
			r.addError("environment %s: %s: %w", probersVariable, path, err)
			continue
		}
		c.Paths[path] = spec
		r.env.addSetting("appProbes "+path, fmt.Sprintf("%s within %s", spec, timeoutText(spec.Timeout)), "environment "+probersVariable)
	}
}

// resolveProbeHost returns the host of forwarded probes: APP_ADDRESS of the node metadata, or else the pod's IP
// address, to which the kubelet would send the probes. If REWRITE_PROBE_LEGACY_LOCALHOST_DESTINATION is true, localhost
// replaces the pod's address.
func (r *resolver) resolveProbeHost() string {
	localhost := r.env.boolean("appProbes.localhost", "REWRITE_PROBE_LEGACY_LOCALHOST_DESTINATION", false)
	host := r.defaultApplicationHost()
	if host == "localhost" && !localhost && len(r.config.Identity.IPs) > 0 {
		host = r.config.Identity.IPs[0].String()
	}
	return host
}

func timeoutText(d time.Duration) string {
	if d == 0 {
		return "the caller's timeout"
	}
	return d.String()
}

// checkNotSelf returns an error if the target of a probe is the agent itself. This happens if a pod is injected twice.
func (r *resolver) checkNotSelf(s probe.Spec) error {
	if s.HTTP != nil && int32(s.HTTP.Port) == r.config.Proxy.GetStatusPort() && appProbePath().MatchString(s.HTTP.Path) {
		return fmt.Errorf("port %d and path %s belong to the agent: the pod was injected twice; deploy the original manifest", s.HTTP.Port, s.HTTP.Path)
	}
	return nil
}

// parseAppProbers parses ISTIO_KUBE_APP_PROBERS. unknown reports fields that this agent does not know. They are not an
// error, because a newer injector may write more fields.
func parseAppProbers(text string) (probers map[string]*appProber, unknown, err error) {
	if len(text) > maxProberText {
		return nil, nil, fmt.Errorf("the value is longer than %d bytes", maxProberText)
	}
	if err := decodeOne(text, &probers, false); err != nil {
		return nil, nil, fmt.Errorf("the value is not the JSON of Istio's injector: %w", describeJSONError(err))
	}
	for path, p := range probers {
		if !appProbePath().MatchString(path) {
			return nil, nil, fmt.Errorf("path %q: write /app-health/<container>/livez, readyz or startupz, or /app-lifecycle/<container>/prestopz or poststartz", path)
		}
		if p == nil {
			return nil, nil, fmt.Errorf("%s: the probe is null; remove it", path)
		}
	}
	var strict map[string]*appProber
	return probers, decodeOne(text, &strict, true), nil
}

// describeJSONError replaces an error that names a Go type. Other errors are returned unchanged.
func describeJSONError(err error) error {
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return fmt.Errorf("unexpected JSON %s at byte %d", wrong.Value, wrong.Offset)
	}
	return err
}

// decodeOne decodes a JSON value. It fails if other data follows the value, or if strict is true and a field is
// unknown.
func decodeOne(text string, into any, strict bool) error {
	d := json.NewDecoder(strings.NewReader(text))
	if strict {
		d.DisallowUnknownFields()
	}
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("unexpected data after the JSON value, at byte %d", d.InputOffset())
	}
	return nil
}

// spec returns the specification of the probe with host as its target.
func (p *appProber) spec(host string) (s probe.Spec, err error) {
	s.Timeout = time.Duration(p.TimeoutSeconds) * time.Second
	if s.Timeout < 0 {
		return s, fmt.Errorf("timeoutSeconds: %d: write a number of seconds, or 0 for none", p.TimeoutSeconds)
	}
	s.Timeout = min(s.Timeout, maxProbeTimeout)
	kinds := 0
	if h := p.HTTPGet; h != nil {
		kinds++
		s.HTTP = &probe.HTTP{Host: host, Path: h.Path}
		s.HTTP.TLS = strings.EqualFold(h.Scheme, "HTTPS") // as in Istio, any other scheme is HTTP
		err = readPort(h.Port, &s.HTTP.Port)
	}
	if t := p.TCPSocket; t != nil {
		kinds++
		s.TCP = &probe.TCP{Host: host}
		err = errors.Join(err, readPort(t.Port, &s.TCP.Port))
	}
	if g := p.GRPC; g != nil {
		kinds++
		s.GRPC = &probe.GRPC{Host: host}
		if g.Service != nil {
			s.GRPC.Service = *g.Service
		}
		err = errors.Join(err, readPort(g.Port, &s.GRPC.Port))
	}
	if kinds != 1 {
		return s, fmt.Errorf("the probe has %d of httpGet, tcpSocket and grpc: write exactly one", kinds)
	}
	return s, err
}

func isHTTPS(scheme string) (bool, error) {
	switch strings.ToUpper(scheme) {
	case "", "HTTP":
		return false, nil
	case "HTTPS":
		return true, nil
	}
	return false, fmt.Errorf("scheme: %q: write HTTP or HTTPS", scheme)
}

// readPort parses a port number. It does not support port names, because the injector replaces them by numbers.
func readPort(raw json.RawMessage, port *uint16) error {
	if err := json.Unmarshal(raw, port); err != nil || *port == 0 || bytes.Equal(raw, []byte("null")) {
		return fmt.Errorf("port: %s: write a number from 1 to 65535", string(raw))
	}
	return nil
}
