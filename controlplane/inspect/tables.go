package inspect

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// Parts are the parts of a proxy's configuration that have a table, with the types that they are of.
var Parts = map[string][]string{
	"listeners": {xds.ListenerType}, "routes": {xds.RouteType, xds.VirtualHostType}, "clusters": {xds.ClusterType}, "endpoints": {xds.EndpointType},
}

// WriteTable writes a part of a proxy's configuration for people.
func WriteTable(out io.Writer, part string, all map[string][]Resource) error {
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	switch part {
	case "listeners":
		listeners(w, trees(all[xds.ListenerType]))
	case "routes":
		routes(w, trees(all[xds.RouteType]), trees(all[xds.VirtualHostType]))
	case "clusters":
		clusters(w, trees(all[xds.ClusterType]))
	case "endpoints":
		endpoints(w, trees(all[xds.EndpointType]))
	default:
		return fmt.Errorf("there is no table of %q", part)
	}
	return w.Flush()
}

func trees(list []Resource) []tree {
	out := make([]tree, len(list))
	for i, r := range list {
		out[i] = tree{camel(r.Body)}
	}
	slices.SortStableFunc(out, func(a, b tree) int { return cmp.Compare(a.at("name").text(), b.at("name").text()) })
	return out
}

func row(w io.Writer, cells ...string) {
	for i, c := range cells {
		cells[i] = line(cmp.Or(c, "-"))
	}
	fmt.Fprintln(w, strings.Join(cells, "\t"))
}

func clusters(w io.Writer, list []tree) {
	row(w, "SERVICE", "PORT", "SUBSET", "DIRECTION", "TYPE", "TLS")
	for _, c := range list {
		name, port, subset, direction := c.at("name").text(), "", "", ""
		if parts := strings.Split(name, "|"); len(parts) == 4 {
			direction, port, subset, name = parts[0], parts[1], parts[2], cmp.Or(parts[3], "(its own port)")
		}
		kind := cmp.Or(c.at("type").text(), c.at("clusterType", "name").text(), "STATIC")
		row(w, name, port, subset, direction, kind, upstreamTLS(c))
	}
}

// upstreamTLS says how a cluster connects.
func upstreamTLS(c tree) string {
	var ways []string
	for _, m := range c.at("transportSocketMatches").list() {
		way := cmp.Or(socketTLS(m.at("transportSocket")), "plaintext")
		if way == "mutual TLS" {
			way += " where there is a sidecar"
		}
		ways = append(ways, behindProxyHeader(m.at("transportSocket"), way))
	}
	if len(ways) > 0 {
		return strings.Join(ways, ", else ")
	}
	return behindProxyHeader(c.at("transportSocket"), socketTLS(c.at("transportSocket")))
}

// socketTLS says which TLS a transport socket speaks, or the one within it; "" for none.
func socketTLS(t tree) string {
	if inner := t.at("typedConfig", "transportSocket"); inner.v != nil {
		return socketTLS(inner)
	}
	switch {
	case !strings.HasSuffix(t.at("name").text(), "tls"):
		return ""
	case len(t.at("typedConfig", "commonTlsContext", "tlsCertificateSdsSecretConfigs").list()) > 0:
		return "mutual TLS"
	}
	return "TLS"
}

// behindProxyHeader adds that connections begin with a header of the PROXY protocol.
func behindProxyHeader(t tree, way string) string {
	if t.at("typedConfig", "transportSocket").v == nil {
		return way
	}
	return "PROXY protocol, " + cmp.Or(way, "plaintext")
}

func endpoints(w io.Writer, list []tree) {
	row(w, "ENDPOINT", "HEALTH", "LOCALITY", "WEIGHT", "PRIORITY", "CLUSTER")
	for _, a := range list {
		for _, group := range a.at("endpoints").list() {
			l := group.at("locality")
			locality := strings.TrimRight(strings.Join([]string{l.at("region").text(), l.at("zone").text(), l.at("subZone").text()}, "/"), "/")
			for _, e := range group.at("lbEndpoints").list() {
				row(w, e.at("endpoint", "address").address(), cmp.Or(e.at("health").text(), e.at("healthStatus").text(), "HEALTHY"), locality,
					cmp.Or(e.at("loadBalancingWeight").text(), "1"), cmp.Or(group.at("priority").text(), "0"), a.at("clusterName").text())
			}
		}
	}
}

func routes(w io.Writer, configurations, apart []tree) {
	row(w, "ROUTE", "VIRTUAL HOST", "DOMAINS", "MATCH", "GOES TO")
	for _, c := range configurations {
		hosts := c.at("virtualHosts").list()
		for _, h := range apart {
			if route, _ := xds.CutHost(h.at("name").text()); route == c.at("name").text() {
				hosts = append(hosts, h)
			}
		}
		for _, h := range hosts {
			_, name := xds.CutHost(h.at("name").text())
			for _, r := range h.at("routes").list() {
				row(w, c.at("name").text(), name, shortList(h.at("domains").texts()), matchText(r.at("match")), target(r))
			}
			if len(h.at("routes").list()) == 0 {
				row(w, c.at("name").text(), name, shortList(h.at("domains").texts()), "", "404")
			}
		}
		if len(hosts) == 0 {
			row(w, c.at("name").text(), "", "", "", "404")
		}
	}
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
		if v := m.at(way.field).text(); v != "" {
			parts = append(parts, fmt.Sprintf(way.text, v))
		}
	}
	if v := m.at("safeRegex", "regex").text(); v != "" {
		parts = append(parts, "~"+v)
	}
	for _, h := range m.at("headers").list() {
		parts = append(parts, headerText(h))
	}
	for _, q := range m.at("queryParameters").list() {
		parts = append(parts, "?"+q.at("name").text()+valueText(q.at("stringMatch")))
	}
	for _, d := range m.at("dynamicMetadata").list() {
		parts = append(parts, metadataText(d))
	}
	if m.at("caseSensitive").text() == "false" {
		parts = append(parts, "(in any case)")
	}
	return strings.Join(parts, " ")
}

func headerText(h tree) string {
	text := h.at("name").text() + valueText(h.at("stringMatch"))
	if h.at("invertMatch").text() == "true" {
		text = "not " + text
	}
	return text
}

// metadataText is what is asked of what filters found out of a request: the claims of its token.
func metadataText(m tree) string {
	var keys []string
	for _, segment := range m.at("path").list() {
		keys = append(keys, segment.at("key").text())
	}
	text := "metadata " + strings.Join(keys, ".")
	if ways := m.at("value", "orMatch", "valueMatchers").list(); len(ways) > 0 { // a text, or one in a list: alike but for that
		text += valueText(ways[0].at("stringMatch"))
	}
	if m.at("invert").text() == "true" {
		text = "not " + text
	}
	return text
}

func valueText(m tree) string {
	switch {
	case m.has("exact"):
		return "=" + m.at("exact").text()
	case m.has("prefix"):
		return "=" + m.at("prefix").text() + "*"
	case m.has("safeRegex"):
		return "~" + m.at("safeRegex", "regex").text()
	}
	return ""
}

// redirectText is what a redirect changes of the request's own address.
func redirectText(r tree) string {
	to := r.at("hostRedirect").text()
	if scheme := r.at("schemeRedirect").text(); scheme != "" {
		to = scheme + "://" + to
	} else if r.at("httpsRedirect").text() == "true" {
		to = "https://" + to
	}
	if port := r.at("portRedirect").text(); port != "" {
		to += ":" + port
	}
	if prefix := r.at("prefixRewrite").text(); prefix != "" {
		to += prefix + "*"
	}
	return strings.TrimRight("redirect "+to+r.at("pathRedirect").text()+r.at("regexRewrite", "substitution").text(), " ")
}

func target(r tree) string {
	switch {
	case r.has("redirect"):
		return redirectText(r.at("redirect"))
	case r.has("directResponse"):
		return r.at("directResponse", "status").text()
	}
	action := r.at("route")
	var out []string
	for _, c := range action.at("weightedClusters", "clusters").list() {
		out = append(out, cmp.Or(c.at("weight").text(), "0")+" "+c.at("name").text())
	}
	text := cmp.Or(action.at("cluster").text(), strings.Join(out, ", "), action.at("clusterHeader").text())
	if timeout := action.at("timeout").text(); timeout != "" && timeout != "0s" {
		text += " in " + timeout
	}
	return text
}

func listeners(w io.Writer, list []tree) {
	row(w, "LISTENER", "ADDRESS", "MATCH", "GOES TO")
	for _, l := range list {
		chains := l.at("filterChains").list()
		if d := l.at("defaultFilterChain"); d.v != nil {
			chains = append(chains, d)
		}
		for _, chain := range chains {
			row(w, l.at("name").text(), l.at("address").address(), chainMatch(chain.at("filterChainMatch")), chainTarget(chain))
		}
	}
}

func chainMatch(m tree) string {
	var parts []string
	if v := m.at("transportProtocol").text(); v != "" {
		parts = append(parts, v)
	}
	if v := m.at("applicationProtocols").texts(); len(v) > 0 {
		parts = append(parts, strings.Join(v, ","))
	}
	if v := m.at("serverNames").texts(); len(v) > 0 {
		parts = append(parts, "SNI "+shortList(v))
	}
	for _, p := range m.at("prefixRanges").list() {
		parts = append(parts, p.at("addressPrefix").text()+"/"+p.at("prefixLen").text())
	}
	if v := m.at("destinationPort").text(); v != "" {
		parts = append(parts, ":"+v)
	}
	return cmp.Or(strings.Join(parts, " "), "all")
}

func chainTarget(chain tree) string {
	for _, f := range chain.at("filters").list() {
		c := f.at("typedConfig")
		switch {
		case c.has("rds"):
			return "routes " + c.at("rds", "routeConfigName").text()
		case c.has("routeConfig"):
			return "routes of its own: " + c.at("routeConfig", "name").text()
		case strings.HasSuffix(c.at("@type").text(), "TcpProxy"):
			var out []string
			for _, w := range c.at("weightedClusters", "clusters").list() {
				out = append(out, w.at("weight").text()+" "+w.at("name").text())
			}
			return cmp.Or(c.at("cluster").text(), strings.Join(out, ", "))
		}
	}
	return "closes"
}
