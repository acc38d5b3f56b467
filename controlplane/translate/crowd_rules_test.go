package translate_test

import (
	"fmt"
	"strings"
)

// crowdRules are edits of where calls lead.
var crowdRules = []func(crowd) string{
	crowd.routes, crowd.routes, crowd.routesOfPorts, crowd.routesOfSNI, crowd.routesByParts, crowd.part, crowd.actions,
	crowd.destinationRule, crowd.destinationRule, crowd.gateway, crowd.gateway, crowd.gatewayOfTLS, crowd.sidecar, crowd.sidecarOfSome,
}

func (c crowd) virtualService(spec string) string {
	return ofNetworking("VirtualService", c.numbered("v", 6), c.namespace(), fmt.Sprintf("hosts: [%q%s], ", c.host(), c.rarely(`, "y.example"`))+c.exported()+spec)
}

func (c crowd) gateways() string {
	return c.of("", "", "gateways: [mesh], ", "gateways: [one/g0], ", "gateways: [mesh, one/g0], ", "gateways: [two/g1, g1], ", "gateways: [one/auto, g0], ")
}

func (c crowd) routes() string {
	match := c.of("sourceNamespace: one", "sourceLabels: {app: a}", "uri: {prefix: /a}", "port: 80", "gateways: [mesh]", "gateways: [one/g0]", "headers: {x: {exact: y}}")
	mirror := c.of("", ", mirror: "+c.destination(), fmt.Sprintf(", mirrors: [{destination: %s, percentage: {value: 3}}]", c.destination()))
	return c.virtualService(fmt.Sprintf("%shttp: [{match: [{%s}], route: [%s]}, {route: [%s]%s}]", c.gateways(), match, c.route(), c.route(), mirror))
}

// actions are what a route may do besides.
func (c crowd) actions() string {
	action := c.of("timeout: 3s", "retries: {attempts: 2, perTryTimeout: 1s}", "fault: {abort: {httpStatus: 503, percentage: {value: 5}}}", "rewrite: {authority: a.example}",
		"corsPolicy: {allowOrigins: [{exact: '*'}]}", "headers: {request: {set: {x: y}}}", "retries: {attempts: 3, retryOn: reset}")
	return c.virtualService(fmt.Sprintf("%shttp: [{match: [{uri: {exact: /r}}], %s}, {%s, route: [%s]}]", c.gateways(),
		c.of("redirect: {authority: b.example}", "directResponse: {status: 418}", "redirect: {uri: /s}"), action, c.route()))
}

func (c crowd) routesOfPorts() string {
	return c.virtualService(fmt.Sprintf("%stcp: [{match: [{port: %s%s}], route: [%s]}, {route: [%s]}]", c.gateways(), c.of("80", "81"),
		c.of("", ", destinationSubnets: [240.9.9.0/24]", ", sourceLabels: {app: a}", ", gateways: [one/g0]"), c.route(), c.route()))
}

func (c crowd) routesOfSNI() string {
	return ofNetworking("VirtualService", c.numbered("v", 6), c.namespace(), fmt.Sprintf("hosts: [a.example, b.example], %s%stls: [{match: [{sniHosts: [a.example]%s}], route: [%s]}, {match: [{sniHosts: [b.example]}], route: [%s]}]",
		c.exported(), c.gateways(), c.of("", ", port: 81", ", sourceLabels: {app: a}"), c.route(), c.route()))
}

func (c crowd) routesByParts() string {
	return c.virtualService(fmt.Sprintf("%shttp: [{%sdelegate: {name: part%s}}, {route: [%s]}]", c.gateways(), c.maybe("match: [{uri: {prefix: /a}}], "),
		c.of("", ", namespace: one", ", namespace: two"), c.route()))
}

func (c crowd) part() string {
	return ofNetworking("VirtualService", "part", c.namespace(), fmt.Sprintf("%shttp: [{match: [{uri: {prefix: /a/b}}], route: [%s]}, {route: [%s], mirrors: [{destination: %s, percentage: {value: 3}}]}]",
		c.exported(), c.route(), c.route(), c.destination()))
}

func (c crowd) destinationRule() string {
	return ofNetworking("DestinationRule", c.numbered("r", 5), c.anyNamespace(), fmt.Sprintf("host: %q, %s%strafficPolicy: {%s}, subsets: [%s]", c.host(), c.exported(),
		c.of("", "", "workloadSelector: {matchLabels: {app: a}}, "), c.trafficPolicy(),
		c.of("{name: v1, labels: {version: v1}}", "", "{name: v1, labels: {version: v1}}, {name: v2, labels: {version: v2}, trafficPolicy: {"+c.trafficPolicy()+"}}")))
}

func (c crowd) trafficPolicy() string {
	policy := c.of("loadBalancer: {consistentHash: {httpHeaderName: x}}", "loadBalancer: {simple: RANDOM}", "loadBalancer: {consistentHash: {useSourceIp: true}}",
		"connectionPool: {tcp: {idleTimeout: 9s}}", "tls: {mode: SIMPLE}", "tls: {mode: SIMPLE, credentialName: cred}", "tls: {mode: MUTUAL, credentialName: cred}", "tls: {mode: DISABLE}",
		"tls: {mode: ISTIO_MUTUAL}", "tunnel: {targetHost: t.example, targetPort: 99}", "connectionPool: {http: {h2UpgradePolicy: UPGRADE}}", "outlierDetection: {consecutive5xxErrors: 3}",
		"loadBalancer: {localityLbSetting: {enabled: true, failover: [{from: r1, to: r2}]}}, outlierDetection: {consecutive5xxErrors: 2}", "loadBalancer: {warmup: {duration: 10s}}", "proxyProtocol: {version: V2}")
	if c.IntN(5) == 0 {
		return fmt.Sprintf("portLevelSettings: [{port: {number: %s}, %s}]", c.of("80", "81"), strings.Split(policy, ", outlier")[0])
	}
	return policy
}

func (c crowd) gateway() string {
	return ofNetworking("Gateway", c.numbered("g", 3), c.namespace(), fmt.Sprintf("selector: %s, servers: [{port: {number: %s, name: http, protocol: %s}, hosts: [%q]}%s]",
		c.of("{istio: edge}", "{istio: edge}", "{app: a}"), c.of("80", "81"), c.of("HTTP", "HTTP2", "TCP"), c.of("*", "a.example", "*.example", "one/*", "./b.example"),
		c.of("", ", {port: {number: 90, name: h, protocol: HTTP}, hosts: [\"*\"], defaultEndpoint: '127.0.0.1:8080'}", ", {port: {number: 81, name: i, protocol: HTTP}, hosts: [\"two/a.example\"], tls: {httpsRedirect: true}}")))
}

func (c crowd) gatewayOfTLS() string {
	mode := c.of("mode: SIMPLE, credentialName: cred", "mode: MUTUAL, credentialName: cred", "mode: PASSTHROUGH", "mode: ISTIO_MUTUAL", "mode: OPTIONAL_MUTUAL, credentialName: cred")
	protocol := c.of("HTTPS", "TLS")
	return ofNetworking("Gateway", c.of("auto", "g0", "g1"), c.namespace(), fmt.Sprintf("selector: {istio: edge}, servers: [{port: {number: 443, name: t, protocol: %s}, hosts: [%q], tls: {%s}}%s]",
		protocol, c.of("a.example", "*.example", "b.example"), mode, c.maybe(", {port: {number: 15443, name: tls, protocol: TLS}, hosts: [\"*.local\"], tls: {mode: AUTO_PASSTHROUGH}}")))
}

func (c crowd) sidecar() string {
	return ofNetworking("Sidecar", c.of("default", "some"), c.anyNamespace(), fmt.Sprintf("%segress: [{hosts: [%q%s]}]", c.maybe("outboundTrafficPolicy: {mode: REGISTRY_ONLY}, "),
		c.of("one/*", "*/*", "*/a.example", "./*", "two/blue.two.svc.cluster.local"), c.maybe(", 'two/*'")))
}

func (c crowd) sidecarOfSome() string {
	ingress := c.rarely("ingress: [{port: {number: 8080, protocol: HTTP, name: web}, defaultEndpoint: '127.0.0.1:9'}], ")
	return ofNetworking("Sidecar", "pick", c.namespace(), fmt.Sprintf("workloadSelector: {labels: %s}, %segress: [{port: {number: 80, name: http, protocol: %s}, hosts: [%q]}, {hosts: [%q]}]",
		c.labels(), ingress, c.of("HTTP", "TCP"), c.of("one/*", "*/*"), c.of("one/*", "*/*")))
}
