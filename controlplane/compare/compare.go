// Package compare determines how the configuration of proxies differs between two states of a mesh. It shows the effect
// of a change before the change is applied.
package compare

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/translate"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// maxValues limits the number of differing values that are listed for one resource.
const maxValues = 40

// Kind is the kind of change of a resource.
type Kind string

// The kinds of changes.
const (
	Added   Kind = "added"
	Removed Kind = "removed"
	Changed Kind = "changed"
)

// Change is the change of one resource.
type Change struct {
	Type string `json:"type"`
	Name string `json:"name"`
	Kind Kind   `json:"kind"`
	// Values lists the values of the resource that differ.
	Values []Value `json:"values,omitempty"`
	// More is the number of differing values that Values omits.
	More int `json:"more,omitempty"`
}

// Value is one value of a resource that differs. Before or After is "" if the value does not exist on that side.
type Value struct {
	Path   string `json:"path"`
	Before string `json:"before,omitempty"`
	After  string `json:"after,omitempty"`
}

// Group contains proxies whose configuration changes in the same way.
type Group struct {
	Proxies []string `json:"proxies"`
	Changes []Change `json:"changes"`
}

// Proxies compares the resources of each proxy in two snapshots. It groups proxies with the same changes, and omits
// proxies without changes.
func Proxies(before, after *snapshot.Snapshot, proxies []*translate.Proxy) ([]Group, error) {
	var groups []Group
	byContent := map[string]int{}
	shown := map[string]Change{} // by the compared versions, because most proxies share their resources
	for _, p := range proxies {
		changes, err := compareProxy(before, after, p, shown)
		if err != nil {
			return nil, fmt.Errorf("comparing the resources of proxy %s: %w", p.ID, err)
		}
		if len(changes) == 0 {
			continue
		}
		key, err := json.Marshal(changes)
		if err != nil {
			return nil, err
		}
		i, ok := byContent[string(key)]
		if !ok {
			i = len(groups)
			byContent[string(key)] = i
			groups = append(groups, Group{Changes: changes})
		}
		groups[i].Proxies = append(groups[i].Proxies, p.ID)
	}
	return groups, nil
}

func compareProxy(before, after *snapshot.Snapshot, p *translate.Proxy, shown map[string]Change) ([]Change, error) {
	var changes []Change
	old, err := AllResources(before, p)
	if err != nil {
		return nil, err
	}
	now, err := AllResources(after, p)
	if err != nil {
		return nil, err
	}
	for _, typeURL := range xds.Order {
		list, err := compareResources(typeURL, old[typeURL], now[typeURL], shown)
		if err != nil {
			return nil, err
		}
		changes = append(changes, list...)
	}
	return changes, nil
}

// AllResources returns all resources of a proxy by type, including resources that the proxy has not requested.
func AllResources(s *snapshot.Snapshot, p *translate.Proxy) (map[string][]*xds.Resource, error) {
	all := map[string][]*xds.Resource{}
	var err error
	put := func(typeURL string, list []*xds.Resource, failed error) {
		all[typeURL] = list
		if failed != nil && err == nil {
			err = fmt.Errorf("generating %s: %w", xds.ShortType(typeURL), failed)
		}
	}
	clusters, failed := translate.Clusters(s, p)
	put(xds.ClusterType, clusters, failed)
	var assignments []string
	for _, c := range clusters {
		if c.Endpoints != "" {
			assignments = append(assignments, c.Endpoints)
		}
	}
	endpoints, failed := translate.Endpoints(s, p, assignments)
	put(xds.EndpointType, endpoints, failed)
	listeners, failed := translate.Listeners(s, p)
	put(xds.ListenerType, listeners, failed)
	routes, failed := translate.Routes(s, p, nil)
	put(xds.RouteType, routes, failed)
	hosts, failed := translate.VirtualHosts(s, p, nil)
	put(xds.VirtualHostType, hosts, failed)
	secrets, failed := translate.Secrets(s, p, nil)
	put(xds.SecretType, secrets, failed)
	extensions, failed := translate.Extensions(s, p, nil)
	put(xds.ExtensionType, extensions, failed)
	if p.Type == translate.Sidecar { // agents of gateways do not request the name table
		names, failed := translate.NameTable(s, p)
		put(xds.NameTableType, []*xds.Resource{names}, failed)
	}
	return all, err
}

func compareResources(typeURL string, before, after []*xds.Resource, shown map[string]Change) ([]Change, error) {
	short := xds.ShortType(typeURL)
	old := map[string]*xds.Resource{}
	for _, r := range before {
		old[r.Name] = r
	}
	var changes []Change
	for _, r := range after {
		o := old[r.Name]
		delete(old, r.Name)
		switch {
		case o == nil:
			changes = append(changes, Change{Type: short, Name: r.Name, Kind: Added})
		case o.Version != r.Version:
			key := strings.Join([]string{short, r.Name, o.Version, r.Version}, "\x00")
			c, ok := shown[key]
			if !ok {
				var err error
				if c, err = compareResource(short, o, r); err != nil {
					return nil, err
				}
				shown[key] = c
			}
			changes = append(changes, c)
		}
	}
	for name := range old {
		changes = append(changes, Change{Type: short, Name: name, Kind: Removed})
	}
	slices.SortFunc(changes, func(a, b Change) int { return strings.Compare(a.Name, b.Name) })
	return changes, nil
}

func compareResource(short string, before, after *xds.Resource) (Change, error) {
	c := Change{Type: short, Name: after.Name, Kind: Changed}
	old, err := flattenResource(before)
	if err != nil {
		return c, err
	}
	now, err := flattenResource(after)
	if err != nil {
		return c, err
	}
	paths := map[string]bool{}
	for p, v := range old {
		if now[p] != v {
			paths[p] = true
		}
	}
	for p, v := range now {
		if old[p] != v {
			paths[p] = true
		}
	}
	for _, p := range slices.Sorted(maps.Keys(paths)) {
		if len(c.Values) == maxValues {
			c.More++
			continue
		}
		c.Values = append(c.Values, Value{Path: p, Before: old[p], After: now[p]})
	}
	return c, nil
}

// flattenResource returns the values of a resource by path. If list items have names, the paths contain the names
// instead of indexes. An added or removed item then does not change the paths of later items.
func flattenResource(r *xds.Resource) (map[string]string, error) {
	data, err := marshalRedacted(r)
	if err != nil {
		return nil, fmt.Errorf("converting the resource %q to JSON: %w", r.Name, err)
	}
	var tree any
	if err := json.Unmarshal(data, &tree); err != nil {
		return nil, err
	}
	out := map[string]string{}
	flatten(tree, "", out)
	return out, nil
}

// marshalRedacted returns a resource as JSON, without private keys.
func marshalRedacted(r *xds.Resource) ([]byte, error) {
	if r.Body.GetTypeUrl() == xds.NameTableType { // name tables have no registered Go type
		return json.Marshal(translate.DescribeNames(r.Body.GetValue()))
	}
	message, err := r.Body.UnmarshalNew()
	if err != nil {
		return nil, err
	}
	if secret, ok := message.(*tlsv3.Secret); ok {
		return json.Marshal(map[string]string{
			"certificate": fingerprint(secret.GetTlsCertificate().GetCertificateChain()),
			"roots":       fingerprint(secret.GetValidationContext().GetTrustedCa()), "revoked": fingerprint(secret.GetValidationContext().GetCrl()),
		})
	}
	Redact(message)
	return protojson.Marshal(message)
}

// fingerprint returns the beginning of a hash that identifies a certificate.
func fingerprint(source *corev3.DataSource) string {
	if source == nil {
		return ""
	}
	return fmt.Sprintf("sha256 %x…", sha256.Sum256(source.GetInlineBytes()))[:23]
}

func flatten(v any, path string, out map[string]string) {
	switch v := v.(type) {
	case map[string]any:
		if len(v) == 0 {
			out[path] = "{}"
		}
		for key, value := range v {
			if path == "" {
				flatten(value, key, out)
			} else {
				flatten(value, path+"."+key, out)
			}
		}
	case []any:
		seen := map[string]int{}
		for i, item := range v {
			label := itemName(item)
			if label == "" {
				label = fmt.Sprint(i)
			} else if seen[label]++; seen[label] > 1 {
				label = fmt.Sprintf("%s#%d", label, seen[label])
			}
			flatten(item, path+"["+label+"]", out)
		}
	case string:
		out[path] = v
	default:
		data, _ := json.Marshal(v) // v was decoded from JSON, so it can be encoded
		out[path] = string(data)
	}
}

// itemName returns the name that identifies a list item, or "" if the item has no name.
func itemName(item any) string {
	switch item := item.(type) {
	case string:
		return item
	case map[string]any:
		if name, ok := item["name"].(string); ok {
			return name
		}
		if endpoint, ok := item["endpoint"].(map[string]any); ok {
			address, _ := json.Marshal(endpoint["address"])
			return string(address)
		}
	}
	return ""
}
