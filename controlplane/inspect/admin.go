package inspect

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"text/tabwriter"

	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// Admin asks the admin interface of one Envoy.
type Admin struct {
	HTTP *http.Client
	// Base is what the pages are below, such as "http://127.0.0.1:15000".
	Base string
}

func (a *Admin) call(ctx context.Context, method, page string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, a.Base+"/"+page, nil)
	if err != nil {
		return nil, err
	}
	answer, err := a.HTTP.Do(req)
	if err != nil {
		return nil, fmt.Errorf("asking Envoy: %w", inner(err))
	}
	defer answer.Body.Close()
	data, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer))
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("Envoy says: %s", strings.TrimSpace(string(data)))
	}
	return data, err
}

func (a *Admin) dump(ctx context.Context, query string) ([]tree, error) {
	data, err := a.call(ctx, http.MethodGet, "config_dump"+query)
	if err != nil {
		return nil, err
	}
	t, err := parseTree(data)
	if err != nil {
		return nil, fmt.Errorf("reading Envoy's configuration: %w", err)
	}
	return t.at("configs").list(), nil
}

// place says where resources stand in a dump of Envoy's.
type place struct {
	dump, list string
	path       []string
	typeURL    string
}

var places = []place{
	{"ListenersConfigDump", "dynamicListeners", []string{"activeState", "listener"}, xds.ListenerType},
	{"ListenersConfigDump", "staticListeners", []string{"listener"}, xds.ListenerType},
	{"ClustersConfigDump", "dynamicActiveClusters", []string{"cluster"}, xds.ClusterType},
	{"ClustersConfigDump", "staticClusters", []string{"cluster"}, xds.ClusterType},
	{"RoutesConfigDump", "dynamicRouteConfigs", []string{"routeConfig"}, xds.RouteType},
	{"EndpointsConfigDump", "dynamicEndpointConfigs", []string{"endpointConfig"}, xds.EndpointType},
	{"EndpointsConfigDump", "staticEndpointConfigs", []string{"endpointConfig"}, xds.EndpointType},
}

// Resources are what the Envoy has, by type URL. Virtual hosts that came by themselves are part of their routes there.
func (a *Admin) Resources(ctx context.Context) (map[string][]Resource, error) {
	dumps, err := a.dump(ctx, "?include_eds")
	if err != nil {
		return nil, err
	}
	all := map[string][]Resource{}
	for _, d := range dumps {
		for _, p := range places {
			if !strings.HasSuffix(d.at("@type").text(), p.dump) {
				continue
			}
			for _, item := range d.at(p.list).list() {
				body := item.at(p.path...)
				if body.v == nil {
					continue
				}
				name := cmp.Or(body.at("name").text(), body.at("clusterName").text())
				version := cmp.Or(item.at("versionInfo").text(), item.at("activeState", "versionInfo").text())
				all[p.typeURL] = append(all[p.typeURL], Resource{Name: name, Version: version, Body: body.v})
			}
		}
	}
	return all, a.addHealth(ctx, all[xds.EndpointType])
}

// Bootstrap is what the Envoy was started with.
func (a *Admin) Bootstrap(ctx context.Context) (any, error) {
	dumps, err := a.dump(ctx, "")
	if err != nil {
		return nil, err
	}
	for _, d := range dumps {
		if strings.HasSuffix(d.at("@type").text(), "BootstrapConfigDump") {
			return d.at("bootstrap").v, nil
		}
	}
	return nil, fmt.Errorf("Envoy does not tell its bootstrap")
}

// Levels sets levels of the log, if any are given, and gives all that are in force.
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

// Secret is a certificate, or what certificates are verified by, without any key.
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

// Secrets are what the Envoy was given, and the certificates that it uses.
func (a *Admin) Secrets(ctx context.Context) ([]Secret, error) {
	dumps, err := a.dump(ctx, "")
	if err != nil {
		return nil, err
	}
	out := []Secret{}
	for _, d := range dumps {
		if !strings.HasSuffix(d.at("@type").text(), "SecretsConfigDump") {
			continue
		}
		for list, state := range map[string]string{"dynamicActiveSecrets": "active", "dynamicWarmingSecrets": "awaited", "staticSecrets": "static"} {
			for _, s := range d.at(list).list() {
				kind := "certificate"
				if s.at("secret").has("validationContext") {
					kind = "trusted roots"
				}
				out = append(out, Secret{Name: s.at("name").text(), Kind: kind, State: state, Version: s.at("versionInfo").text(), Updated: s.at("lastUpdated").text()})
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
	for _, c := range (tree{camel(t)}).at("certificates").list() {
		for field, kind := range map[string]string{"caCert": "trusted root, in use", "certChain": "certificate, in use"} {
			for _, one := range c.at(field).list() {
				s := Secret{Name: one.at("path").text(), Kind: kind, State: "active", Serial: one.at("serialNumber").text(), NotAfter: one.at("expirationTime").text()}
				for _, name := range one.at("subjectAltNames").list() {
					s.Subject = cmp.Or(name.at("uri").text(), name.at("dns").text())
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

// WriteSecrets writes secrets for people.
func WriteSecrets(out io.Writer, secrets []Secret) error {
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	row(w, "NAME", "KIND", "STATE", "SUBJECT", "SERIAL", "NOT AFTER")
	for _, s := range secrets {
		row(w, s.Name, s.Kind, s.State, s.Subject, s.Serial, s.NotAfter)
	}
	return w.Flush()
}
