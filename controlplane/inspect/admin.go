package inspect

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
	"github.com/pilotfish-mesh/pilotfish/internal/redact"
	"github.com/pilotfish-mesh/pilotfish/internal/terminal"
)

// Admin is a client of one Envoy's admin interface.
type Admin struct {
	HTTP *http.Client
	// Base is the base URL, such as "http://127.0.0.1:15000".
	Base string
}

func (a *Admin) call(ctx context.Context, method, page string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, a.Base+"/"+page, nil)
	if err != nil {
		return nil, fmt.Errorf("the address of Envoy's admin interface, %s, is not valid: %w", a.Base, unwrapURLError(err))
	}
	answer, err := a.HTTP.Do(req)
	if err != nil {
		return nil, fmt.Errorf("querying Envoy's admin interface: %w", unwrapURLError(err))
	}
	defer answer.Body.Close()
	data, err := io.ReadAll(io.LimitReader(answer.Body, maxResponseSize))
	if err != nil {
		return nil, fmt.Errorf("reading the response of Envoy's admin interface: %w", err)
	}
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("Envoy's admin interface reports: %s", strings.TrimSpace(string(data)))
	}
	return data, nil
}

func (a *Admin) dump(ctx context.Context, query string) ([]tree, error) {
	data, err := a.call(ctx, http.MethodGet, "config_dump"+query)
	if err != nil {
		return nil, err
	}
	var clean bytes.Buffer // Envoy does not redact the secrets in node metadata and filters, so they are redacted here
	if err := redact.JSON(&clean, bytes.NewReader(data)); err != nil {
		return nil, fmt.Errorf("reading Envoy's configuration: %w", err)
	}
	t, err := parseTree(clean.Bytes())
	if err != nil {
		return nil, fmt.Errorf("reading Envoy's configuration: %w", err)
	}
	return t.lookup("configs").list(), nil
}

// dumpSection specifies the part of Envoy's configuration dump that contains the resources of one type.
type dumpSection struct {
	dump, list string
	path       []string
	typeURL    string
}

var dumpSections = []dumpSection{
	{"ListenersConfigDump", "dynamicListeners", []string{"activeState", "listener"}, xds.ListenerType},
	{"ListenersConfigDump", "staticListeners", []string{"listener"}, xds.ListenerType},
	{"ClustersConfigDump", "dynamicActiveClusters", []string{"cluster"}, xds.ClusterType},
	{"ClustersConfigDump", "staticClusters", []string{"cluster"}, xds.ClusterType},
	{"RoutesConfigDump", "dynamicRouteConfigs", []string{"routeConfig"}, xds.RouteType},
	{"EndpointsConfigDump", "dynamicEndpointConfigs", []string{"endpointConfig"}, xds.EndpointType},
	{"EndpointsConfigDump", "staticEndpointConfigs", []string{"endpointConfig"}, xds.EndpointType},
}

// Resources returns Envoy's resources by type URL. It adds virtual hosts that Envoy received separately to their route
// configurations.
func (a *Admin) Resources(ctx context.Context) (map[string][]Resource, error) {
	dumps, err := a.dump(ctx, "?include_eds")
	if err != nil {
		return nil, err
	}
	all := map[string][]Resource{}
	for _, d := range dumps {
		for _, p := range dumpSections {
			if !strings.HasSuffix(d.lookup("@type").text(), p.dump) {
				continue
			}
			for _, item := range d.lookup(p.list).list() {
				body := item.lookup(p.path...)
				if body.v == nil {
					continue
				}
				name := cmp.Or(body.lookup("name").text(), body.lookup("clusterName").text())
				version := cmp.Or(item.lookup("versionInfo").text(), item.lookup("activeState", "versionInfo").text())
				all[p.typeURL] = append(all[p.typeURL], Resource{Name: name, Version: version, Body: body.v})
			}
		}
	}
	return all, a.addHealth(ctx, all[xds.EndpointType])
}

// Bootstrap returns Envoy's bootstrap.
func (a *Admin) Bootstrap(ctx context.Context) (any, error) {
	dumps, err := a.dump(ctx, "")
	if err != nil {
		return nil, err
	}
	for _, d := range dumps {
		if strings.HasSuffix(d.lookup("@type").text(), "BootstrapConfigDump") {
			return d.lookup("bootstrap").v, nil
		}
	}
	return nil, fmt.Errorf("Envoy's configuration dump has no bootstrap")
}

// Levels sets the log levels ("LEVEL" or "LOGGER:LEVEL"), and returns the resulting levels of all loggers.
func (a *Admin) Levels(ctx context.Context, levels []string) (string, error) {
	for _, l := range levels {
		logger, level, ok := strings.Cut(l, ":")
		query := url.Values{}
		if ok {
			query.Set(logger, level)
		} else {
			query.Set("level", l)
		}
		if _, err := a.call(ctx, http.MethodPost, "logging?"+query.Encode()); err != nil {
			return "", err
		}
	}
	data, err := a.call(ctx, http.MethodPost, "logging")
	return string(data), err
}

// stateAwaited is the state of a secret that Envoy has requested and not received.
const stateAwaited = "awaited"

// Secret describes a certificate or trusted root certificates. It contains no key.
type Secret struct {
	Name     string `json:"name"`
	Kind     string `json:"kind"`
	State    string `json:"state"`
	Version  string `json:"version,omitempty"`
	Updated  string `json:"updated,omitempty"`
	Serial   string `json:"serial,omitempty"`
	Subject  string `json:"subject,omitempty"`
	NotAfter string `json:"notAfter,omitempty"`
}

// Secrets returns descriptions of the secrets in Envoy's configuration, and of the certificates that Envoy uses.
func (a *Admin) Secrets(ctx context.Context) ([]Secret, error) {
	dumps, err := a.dump(ctx, "")
	if err != nil {
		return nil, err
	}
	out := []Secret{}
	for _, d := range dumps {
		if !strings.HasSuffix(d.lookup("@type").text(), "SecretsConfigDump") {
			continue
		}
		for list, state := range map[string]string{"dynamicActiveSecrets": "active", "dynamicWarmingSecrets": stateAwaited, "staticSecrets": "static"} {
			for _, s := range d.lookup(list).list() {
				kind := "certificate"
				if s.lookup("secret").has("validationContext") {
					kind = "trusted roots"
				}
				out = append(out, Secret{Name: s.lookup("name").text(), Kind: kind, State: state, Version: s.lookup("versionInfo").text(), Updated: s.lookup("lastUpdated").text()})
			}
		}
	}
	used, err := a.certificates(ctx)
	return append(out, used...), err
}

func (a *Admin) certificates(ctx context.Context) ([]Secret, error) {
	data, err := a.call(ctx, http.MethodGet, "certs")
	if err != nil {
		return nil, err
	}
	var t any
	if err := json.Unmarshal(data, &t); err != nil {
		return nil, fmt.Errorf("reading Envoy's certificates: %w", err)
	}
	seen := map[string]bool{}
	var out []Secret
	for _, c := range (tree{camelCaseKeys(t)}).lookup("certificates").list() {
		for field, kind := range map[string]string{"caCert": "trusted root, in use", "certChain": "certificate, in use"} {
			for _, one := range c.lookup(field).list() {
				s := Secret{Name: one.lookup("path").text(), Kind: kind, State: "active", Serial: one.lookup("serialNumber").text(), NotAfter: one.lookup("expirationTime").text()}
				for _, name := range one.lookup("subjectAltNames").list() {
					s.Subject = cmp.Or(name.lookup("uri").text(), name.lookup("dns").text())
				}
				if key := s.Kind + s.Serial; !seen[key] {
					seen[key] = true
					out = append(out, s)
				}
			}
		}
	}
	return out, nil
}

// WriteSecrets writes secrets as a table.
func WriteSecrets(out io.Writer, secrets []Secret) error {
	table := terminal.Detect(out).NewTable("NAME", "KIND", "STATE", "SUBJECT", "SERIAL", "NOT AFTER").SetOptional("SERIAL")
	for _, s := range secrets {
		table.AddRow(s.Name, s.Kind, s.State, s.Subject, s.Serial, s.NotAfter)
		if s.State == stateAwaited {
			table.PaintCell(2, terminal.Amber)
		}
	}
	return table.Write(out)
}
