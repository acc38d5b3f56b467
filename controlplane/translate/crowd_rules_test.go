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
	match := c.of("sourceNamespace: one", "sourceLabels: {app: a}", "uri: {prefix: /a}", "port: 80", "gateways: [mesh]", "gateways: [one/g0]", "headers: {x: {exact: y}}",
		"withoutHeaders: {y: {prefix: z}}, method: {exact: GET}", "queryParams: {q: {regex: 'a+'}}", "uri: {prefix: /A}, ignoreUriCase: true", "scheme: {exact: https}, statPrefix: p",
		"authority: {prefix: a}, headers: {x: {}, z: {regex: '.*'}}")
	mirror := c.of("", fmt.Sprintf(", mirror: %s, mirrorPercentage: {value: 0.5}", c.destination()), ", mirror: "+c.destination(), fmt.Sprintf(", mirrors: [{destination: %s, percentage: {value: 3}}]", c.destination()))
	return c.virtualService(fmt.Sprintf("%shttp: [{match: [{%s}], route: [%s]}, {route: [%s]%s}]", c.gateways(), match, c.route(), c.route(), mirror))
}

// actions are what a route may do besides.
func (c crowd) actions() string {
	action := c.of("fault: {delay: {fixedDelay: 1s, percentage: {value: 5}}}", "fault: {abort: {grpcStatus: UNAVAILABLE, percentage: {value: 5}}}",
		"rewrite: {uriRegexRewrite: {match: '/(a)', rewrite: '/b\\1'}}", "rewrite: {uri: /x, authority: b.example}",
		"corsPolicy: {allowOrigins: [{regex: 'a.*'}, {prefix: b}], allowMethods: [GET], allowHeaders: [x], exposeHeaders: [y], maxAge: 9s, allowCredentials: true, unmatchedPreflights: IGNORE}",
		"retries: {attempts: 1, retryRemoteLocalities: true, retryIgnorePreviousHosts: false, backoff: 1s, retryOn: '503,connect-failure'}",
		"headers: {request: {add: {a: '%PROTOCOL%'}, remove: [b]}, response: {set: {c: d}}}", "timeout: 3s", "retries: {attempts: 2, perTryTimeout: 1s}", "fault: {abort: {httpStatus: 503, percentage: {value: 5}}}", "rewrite: {authority: a.example}",
		"corsPolicy: {allowOrigins: [{exact: '*'}]}", "headers: {request: {set: {x: y}}}", "retries: {attempts: 3, retryOn: reset}")
	return c.virtualService(fmt.Sprintf("%shttp: [{match: [{uri: {exact: /r}}], %s}, {%s, route: [%s]}]", c.gateways(),
		c.of("redirect: {authority: b.example}", "directResponse: {status: 418}", "redirect: {uri: /s}", "redirect: {scheme: https, port: 8443, redirectCode: 308}",
			"redirect: {derivePort: FROM_REQUEST_PORT, authority: c.example, uri: '%PREFIX()%/z'}", "directResponse: {status: 200, body: {string: x}}, headers: {response: {set: {a: b}}}"), action, c.route()))
}

func (c crowd) routesOfPorts() string {
	return c.virtualService(fmt.Sprintf("%stcp: [{match: [{port: %s%s}], route: [%s]}, {route: [%s]}]", c.gateways(), c.of("80", "81"),
		c.of("", ", destinationSubnets: [240.9.9.0/24]", ", sourceLabels: {app: a}", ", gateways: [one/g0]", ", sourceNamespace: one"), c.route(), c.route()))
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
		"loadBalancer: {localityLbSetting: {enabled: true, failover: [{from: r1, to: r2}]}}, outlierDetection: {consecutive5xxErrors: 2}", "loadBalancer: {warmup: {duration: 10s, minimumPercent: 5, aggression: 2}}", "proxyProtocol: {version: V2}",
		"tls: {mode: SIMPLE, caCertificates: /a.pem, sni: x.example, subjectAltNames: [x.example]}", "tls: {mode: MUTUAL, clientCertificate: /c.pem, privateKey: /k.pem, caCertificates: /a.pem, caCrl: /l.pem}", "tls: {mode: SIMPLE, insecureSkipVerify: true}",
		"loadBalancer: {simple: LEAST_REQUEST, localityLbSetting: {distribute: [{from: r1/z1, to: {r1/z1: 80, r2: 20}}]}}", "loadBalancer: {localityLbSetting: {failoverPriority: [version, 'topology.istio.io/network']}}, outlierDetection: {}",
		"loadBalancer: {consistentHash: {httpCookie: {name: x, ttl: 9s, path: /}, ringHash: {minimumRingSize: 9}}}", "loadBalancer: {consistentHash: {httpQueryParameterName: q, maglev: {tableSize: 101}}}", "loadBalancer: {simple: PASSTHROUGH}",
		"retryBudget: {percent: 30, minRetryConcurrency: 2}", "connectionPool: {tcp: {"+strings.TrimSuffix(c.some("maxConnections: 7", "connectTimeout: 2s", "maxConnectionDuration: 9s", "tcpKeepalive: {probes: 2, time: 9s, interval: 3s}"), ", ")+"}}",
		"connectionPool: {http: {"+strings.TrimSuffix(c.some("http1MaxPendingRequests: 5", "http2MaxRequests: 6", "maxRequestsPerConnection: 7", "maxRetries: 2", "idleTimeout: 8s", "useClientProtocol: true", "maxConcurrentStreams: 9", "http2KeepAlive: {interval: 9s, timeout: 3s}"), ", ")+"}}",
		"outlierDetection: {"+strings.TrimSuffix(c.some("consecutiveGatewayErrors: 2", "interval: 2s", "baseEjectionTime: 9s", "maxEjectionPercent: 50", "minHealthPercent: 30", "splitExternalLocalOriginErrors: true", "consecutiveLocalOriginFailures: 3", "outlierDetectionHttpErrorCodes: ['500', '502']"), ", ")+"}")
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
	mode := c.of("mode: SIMPLE, credentialName: cred", "mode: MUTUAL, credentialName: cred", "mode: PASSTHROUGH", "mode: ISTIO_MUTUAL", "mode: OPTIONAL_MUTUAL, credentialName: cred",
		"mode: SIMPLE, credentialName: cred, minProtocolVersion: TLSV1_2, maxProtocolVersion: TLSV1_3, cipherSuites: [ECDHE-RSA-AES256-GCM-SHA384]", "mode: SIMPLE, credentialNames: [cred, other]",
		"mode: MUTUAL, serverCertificate: /c.pem, privateKey: /k.pem, caCertificates: /a.pem, subjectAltNames: [x], caCrl: /l.pem", "mode: MUTUAL, credentialName: cred, caCertCredentialName: other",
		"mode: SIMPLE, tlsCertificates: [{serverCertificate: /c.pem, privateKey: /k.pem}, {serverCertificate: /d.pem, privateKey: /l.pem}]")
	protocol := c.of("HTTPS", "TLS")
	return ofNetworking("Gateway", c.of("auto", "g0", "g1"), c.namespace(), fmt.Sprintf("selector: {istio: edge}, servers: [{port: {number: 443, name: t, protocol: %s}, hosts: [%q], tls: {%s}}%s]",
		protocol, c.of("a.example", "*.example", "b.example"), mode, c.maybe(", {port: {number: 15443, name: tls, protocol: TLS}, hosts: [\"*.local\"], tls: {mode: AUTO_PASSTHROUGH}}")))
}

func (c crowd) sidecar() string {
	return ofNetworking("Sidecar", c.of("default", "some"), c.anyNamespace(), fmt.Sprintf("%segress: [{hosts: [%q%s]}]", c.maybe("outboundTrafficPolicy: {mode: REGISTRY_ONLY}, "),
		c.of("one/*", "*/*", "*/a.example", "./*", "two/blue.two.svc.cluster.local", "*/ext.one.svc.cluster.local", "two/ext.two.svc.cluster.local"), c.maybe(", 'two/*'")))
}

func (c crowd) sidecarOfSome() string {
	ingress := c.of("", "", "ingress: [{port: {number: 8080, protocol: HTTP, name: web}, defaultEndpoint: '127.0.0.1:9'}], ", "inboundConnectionPool: {http: {http2MaxRequests: 5}, tcp: {maxConnections: 3}}, ",
		"ingress: [{port: {number: 8443, protocol: HTTPS, name: web}, defaultEndpoint: '0.0.0.0:9', tls: {mode: SIMPLE, credentialName: cred}, connectionPool: {tcp: {maxConnections: 3}}}], ",
		"outboundTrafficPolicy: {mode: ALLOW_ANY, egressProxy: {host: red.one.svc.cluster.local, port: {number: 80}}}, ",
		"outboundTrafficPolicy: {mode: ALLOW_ANY, egressProxy: {host: ext.one.svc.cluster.local, port: {number: 80}}}, ")
	return ofNetworking("Sidecar", "pick", c.namespace(), fmt.Sprintf("workloadSelector: {labels: %s}, %segress: [{port: {number: 80, name: http, protocol: %s}, %shosts: [%q]}, {hosts: [%q]}]",
		c.labels(), ingress, c.of("HTTP", "TCP"), c.of("", "", "bind: 127.193.3.9, ", "captureMode: NONE, bind: 127.193.3.9, "), c.of("one/*", "*/*", "*/ext.one.svc.cluster.local"), c.of("one/*", "*/*", "two/*")))
}
