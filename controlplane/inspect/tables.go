package inspect

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
	"github.com/pilotfish-mesh/pilotfish/internal/terminal"
)

// Parts maps each part of a proxy's configuration that has a table to its resource types.
var Parts = map[string][]string{
	"listeners": {xds.ListenerType}, "routes": {xds.RouteType, xds.VirtualHostType}, "clusters": {xds.ClusterType}, "endpoints": {xds.EndpointType},
}

// WriteTable writes one part of a proxy's configuration as a table.
func WriteTable(out io.Writer, part string, all map[string][]Resource) error {
	f := terminal.Detect(out)
	var table *terminal.Table
	switch part {
	case "listeners":
		table = listeners(f, trees(all[xds.ListenerType]))
	case "routes":
		table = routes(f, trees(all[xds.RouteType]), trees(all[xds.VirtualHostType]))
	case "clusters":
		table = clusters(f, trees(all[xds.ClusterType]))
	case "endpoints":
		table = endpoints(f, trees(all[xds.EndpointType]))
	default:
		return fmt.Errorf("%q is not a part of a proxy's configuration that can be displayed", part)
	}
	return table.Write(out)
}

func trees(list []Resource) []tree {
	out := make([]tree, len(list))
	for i, r := range list {
		out[i] = tree{camelCaseKeys(r.Body)}
	}
	slices.SortStableFunc(out, func(a, b tree) int { return cmp.Compare(a.lookup("name").text(), b.lookup("name").text()) })
	return out
}

func clusters(f terminal.Format, list []tree) *terminal.Table {
	table := f.NewTable("SERVICE", "PORT", "SUBSET", "DIRECTION", "TYPE", "TLS").SetOptional("TYPE")
	for _, c := range list {
		name, port, subset, direction := c.lookup("name").text(), "", "", ""
		if parts := strings.Split(name, "|"); len(parts) == 4 {
			direction, port, subset, name = parts[0], parts[1], parts[2], cmp.Or(parts[3], "(workload's own port)")
		}
		kind := cmp.Or(c.lookup("type").text(), c.lookup("clusterType", "name").text(), "STATIC")
		table.AddRow(name, port, subset, direction, kind, upstreamTLS(c))
	}
	return table
}

// upstreamTLS describes whether and how a cluster's connections use TLS.
func upstreamTLS(c tree) string {
	var ways []string
	for _, m := range c.lookup("transportSocketMatches").list() {
		way := cmp.Or(socketTLS(m.lookup("transportSocket")), "plaintext")
		if way == "mutual TLS" {
			way += " to endpoints with a sidecar"
		}
		ways = append(ways, withProxyHeader(m.lookup("transportSocket"), way))
	}
	if len(ways) > 0 {
		return strings.Join(ways, ", else ")
	}
	return withProxyHeader(c.lookup("transportSocket"), socketTLS(c.lookup("transportSocket")))
}

// socketTLS describes the TLS settings of a transport socket, or of the transport socket inside it. It returns "" for
// plaintext.
func socketTLS(t tree) string {
	if inner := t.lookup("typedConfig", "transportSocket"); inner.v != nil {
		return socketTLS(inner)
	}
	switch {
	case !strings.HasSuffix(t.lookup("name").text(), "tls"):
		return ""
	case len(t.lookup("typedConfig", "commonTlsContext", "tlsCertificateSdsSecretConfigs").list()) > 0:
		return "mutual TLS"
	}
	return "TLS"
}

// withProxyHeader returns the description way. If connections begin with a PROXY protocol header, it adds this to the
// description.
func withProxyHeader(t tree, way string) string {
	if t.lookup("typedConfig", "transportSocket").v == nil {
		return way
	}
	return "PROXY protocol, " + cmp.Or(way, "plaintext")
}

func endpoints(f terminal.Format, list []tree) *terminal.Table {
	table := f.NewTable("ENDPOINT", "HEALTH", "LOCALITY", "WEIGHT", "PRIORITY", "CLUSTER").SetOptional("PRIORITY", "WEIGHT", "LOCALITY")
	for _, a := range list {
		for _, group := range a.lookup("endpoints").list() {
			l := group.lookup("locality")
			locality := strings.TrimRight(strings.Join([]string{l.lookup("region").text(), l.lookup("zone").text(), l.lookup("subZone").text()}, "/"), "/")
			for _, e := range group.lookup("lbEndpoints").list() {
				state := cmp.Or(e.lookup("health").text(), e.lookup("healthStatus").text(), healthy)
				table.AddRow(e.lookup("endpoint", "address").address(), state, locality,
					cmp.Or(e.lookup("loadBalancingWeight").text(), "1"), cmp.Or(group.lookup("priority").text(), "0"), a.lookup("clusterName").text())
				table.PaintCell(healthColumn, healthColour(state))
			}
		}
	}
	return table
}

const (
	healthColumn = 1
	healthy      = "HEALTHY"
)

// healthColour returns the colour of an endpoint's health.
func healthColour(state string) terminal.Colour {
	switch state {
	case healthy:
		return terminal.Green
	case "DEGRADED", "UNCHECKED", "LEAVING", "DRAINING":
		return terminal.Amber
	}
	return terminal.Red
}

func routes(f terminal.Format, configurations, apart []tree) *terminal.Table {
	table := f.NewTable("ROUTE", "VIRTUAL HOST", "DOMAINS", "MATCH", "TARGET").SetOptional("VIRTUAL HOST")
	for _, c := range configurations {
		hosts := c.lookup("virtualHosts").list()
		for _, h := range apart {
			if route, _ := xds.SplitVirtualHostName(h.lookup("name").text()); route == c.lookup("name").text() {
				hosts = append(hosts, h)
			}
		}
		for _, h := range hosts {
			_, name := xds.SplitVirtualHostName(h.lookup("name").text())
			for _, r := range h.lookup("routes").list() {
				table.AddRow(c.lookup("name").text(), name, shortList(h.lookup("domains").texts()), matchText(r.lookup("match")), target(r))
			}
			if len(h.lookup("routes").list()) == 0 {
				table.AddRow(c.lookup("name").text(), name, shortList(h.lookup("domains").texts()), "", "404")
			}
		}
		if len(hosts) == 0 {
			table.AddRow(c.lookup("name").text(), "", "", "", "404")
		}
	}
	return table
}

func shortList(list []string) string {
	if len(list) > 2 {
		return fmt.Sprintf("%s, %s + %d more", list[0], list[1], len(list)-2)
	}
	return strings.Join(list, ", ")
}

func matchText(m tree) string {
	var parts []string
	for _, way := range []struct{ field, text string }{{"prefix", "%s*"}, {"path", "%s"}, {"pathSeparatedPrefix", "%s/*"}} {
		if v := m.lookup(way.field).text(); v != "" {
			parts = append(parts, fmt.Sprintf(way.text, v))
		}
	}
	if v := m.lookup("safeRegex", "regex").text(); v != "" {
		parts = append(parts, "~"+v)
	}
	for _, h := range m.lookup("headers").list() {
		parts = append(parts, headerText(h))
	}
	for _, q := range m.lookup("queryParameters").list() {
		parts = append(parts, "?"+q.lookup("name").text()+valueText(q.lookup("stringMatch")))
	}
	for _, d := range m.lookup("dynamicMetadata").list() {
		parts = append(parts, metadataText(d))
	}
	if m.lookup("caseSensitive").text() == "false" {
		parts = append(parts, "(case-insensitive)")
	}
	return strings.Join(parts, " ")
}

func headerText(h tree) string {
	text := h.lookup("name").text() + valueText(h.lookup("stringMatch"))
	if h.lookup("invertMatch").text() == "true" {
		text = "not " + text
	}
	return text
}

// metadataText describes a match on dynamic metadata, which contains the claims of a request's token.
func metadataText(m tree) string {
	var keys []string
	for _, segment := range m.lookup("path").list() {
		keys = append(keys, segment.lookup("key").text())
	}
	text := "metadata " + strings.Join(keys, ".")
	// Both alternatives match the same value: as a string, or as an item of a list.
	if ways := m.lookup("value", "orMatch", "valueMatchers").list(); len(ways) > 0 {
		text += valueText(ways[0].lookup("stringMatch"))
	}
	if m.lookup("invert").text() == "true" {
		text = "not " + text
	}
	return text
}

func valueText(m tree) string {
	switch {
	case m.has("exact"):
		return "=" + m.lookup("exact").text()
	case m.has("prefix"):
		return "=" + m.lookup("prefix").text() + "*"
	case m.has("safeRegex"):
		return "~" + m.lookup("safeRegex", "regex").text()
	}
	return ""
}

// redirectText describes what a redirect changes in the request's URL.
func redirectText(r tree) string {
	to := r.lookup("hostRedirect").text()
	if scheme := r.lookup("schemeRedirect").text(); scheme != "" {
		to = scheme + "://" + to
	} else if r.lookup("httpsRedirect").text() == "true" {
		to = "https://" + to
	}
	if port := r.lookup("portRedirect").text(); port != "" {
		to += ":" + port
	}
	if prefix := r.lookup("prefixRewrite").text(); prefix != "" {
		to += prefix + "*"
	}
	return strings.TrimRight("redirect "+to+r.lookup("pathRedirect").text()+r.lookup("regexRewrite", "substitution").text(), " ")
}

func target(r tree) string {
	switch {
	case r.has("redirect"):
		return redirectText(r.lookup("redirect"))
	case r.has("directResponse"):
		return r.lookup("directResponse", "status").text()
	}
	action := r.lookup("route")
	var out []string
	for _, c := range action.lookup("weightedClusters", "clusters").list() {
		out = append(out, cmp.Or(c.lookup("weight").text(), "0")+" "+c.lookup("name").text())
	}
	text := cmp.Or(action.lookup("cluster").text(), strings.Join(out, ", "), action.lookup("clusterHeader").text())
	if timeout := action.lookup("timeout").text(); timeout != "" && timeout != "0s" {
		text += " in " + timeout
	}
	return text
}

func listeners(f terminal.Format, list []tree) *terminal.Table {
	table := f.NewTable("LISTENER", "ADDRESS", "MATCH", "TARGET")
	for _, l := range list {
		chains := l.lookup("filterChains").list()
		if d := l.lookup("defaultFilterChain"); d.v != nil {
			chains = append(chains, d)
		}
		for _, chain := range chains {
			table.AddRow(l.lookup("name").text(), l.lookup("address").address(), chainMatch(chain.lookup("filterChainMatch")), chainTarget(chain))
		}
	}
	return table
}

func chainMatch(m tree) string {
	var parts []string
	if v := m.lookup("transportProtocol").text(); v != "" {
		parts = append(parts, v)
	}
	if v := m.lookup("applicationProtocols").texts(); len(v) > 0 {
		parts = append(parts, strings.Join(v, ","))
	}
	if v := m.lookup("serverNames").texts(); len(v) > 0 {
		parts = append(parts, "SNI "+shortList(v))
	}
	for _, p := range m.lookup("prefixRanges").list() {
		parts = append(parts, p.lookup("addressPrefix").text()+"/"+p.lookup("prefixLen").text())
	}
	if v := m.lookup("destinationPort").text(); v != "" {
		parts = append(parts, ":"+v)
	}
	return cmp.Or(strings.Join(parts, " "), "all")
}

func chainTarget(chain tree) string {
	for _, f := range chain.lookup("filters").list() {
		c := f.lookup("typedConfig")
		switch {
		case c.has("rds"):
			return "routes " + c.lookup("rds", "routeConfigName").text()
		case c.has("routeConfig"):
			return "inline routes: " + c.lookup("routeConfig", "name").text()
		case strings.HasSuffix(c.lookup("@type").text(), "TcpProxy"):
			var out []string
			for _, w := range c.lookup("weightedClusters", "clusters").list() {
				out = append(out, w.lookup("weight").text()+" "+w.lookup("name").text())
			}
			return cmp.Or(c.lookup("cluster").text(), strings.Join(out, ", "))
		}
	}
	return "closes"
}
