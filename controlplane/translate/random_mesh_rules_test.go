package translate_test

import (
	"fmt"
	"strings"
)

// ruleGenerators generate routing rules.
var ruleGenerators = []func(documentGenerator) string{
	documentGenerator.routes, documentGenerator.routes, documentGenerator.routesOfPorts, documentGenerator.routesOfSNI, documentGenerator.routesByParts, documentGenerator.part, documentGenerator.actions,
	documentGenerator.destinationRule, documentGenerator.destinationRule, documentGenerator.gateway, documentGenerator.gateway, documentGenerator.gatewayOfTLS, documentGenerator.sidecar, documentGenerator.sidecarOfSome,
}

func (c documentGenerator) virtualService(spec string) string {
	return ofNetworking("VirtualService", c.numbered("v", 6), c.namespace(), fmt.Sprintf("hosts: [%q%s], ", c.host(), c.rarely(`, "y.example"`))+c.exported()+spec)
}

func (c documentGenerator) gateways() string {
	return c.pick("", "", "gateways: [mesh], ", "gateways: [one/g0], ", "gateways: [mesh, one/g0], ", "gateways: [two/g1, g1], ", "gateways: [one/auto, g0], ")
}

func (c documentGenerator) routes() string {
	match := c.pick("sourceNamespace: one", "sourceLabels: {app: a}", "uri: {prefix: /a}", "port: 80", "gateways: [mesh]", "gateways: [one/g0]", "headers: {x: {exact: y}}",
		"withoutHeaders: {y: {prefix: z}}, method: {exact: GET}", "queryParams: {q: {regex: 'a+'}}", "uri: {prefix: /A}, ignoreUriCase: true", "scheme: {exact: https}, statPrefix: p",
		"authority: {prefix: a}, headers: {x: {}, z: {regex: '.*'}}")
	mirror := c.pick("", fmt.Sprintf(", mirror: %s, mirrorPercentage: {value: 0.5}", c.destination()), ", mirror: "+c.destination(), fmt.Sprintf(", mirrors: [{destination: %s, percentage: {value: 3}}]", c.destination()))
	return c.virtualService(fmt.Sprintf("%shttp: [{match: [{%s}], route: [%s]}, {route: [%s]%s}]", c.gateways(), match, c.route(), c.route(), mirror))
}

// actions returns additional settings of a route.
func (c documentGenerator) actions() string {
	action := c.pick("fault: {delay: {fixedDelay: 1s, percentage: {value: 5}}}", "fault: {abort: {grpcStatus: UNAVAILABLE, percentage: {value: 5}}}",
		"rewrite: {uriRegexRewrite: {match: '/(a)', rewrite: '/b\\1'}}", "rewrite: {uri: /x, authority: b.example}",
		"corsPolicy: {allowOrigins: [{regex: 'a.*'}, {prefix: b}], allowMethods: [GET], allowHeaders: [x], exposeHeaders: [y], maxAge: 9s, allowCredentials: true, unmatchedPreflights: IGNORE}",
		"retries: {attempts: 1, retryRemoteLocalities: true, retryIgnorePreviousHosts: false, backoff: 1s, retryOn: '503,connect-failure'}",
		"headers: {request: {add: {a: '%PROTOCOL%'}, remove: [b]}, response: {set: {c: d}}}", "timeout: 3s", "retries: {attempts: 2, perTryTimeout: 1s}", "fault: {abort: {httpStatus: 503, percentage: {value: 5}}}", "rewrite: {authority: a.example}",
		"corsPolicy: {allowOrigins: [{exact: '*'}]}", "headers: {request: {set: {x: y}}}", "retries: {attempts: 3, retryOn: reset}")
	return c.virtualService(fmt.Sprintf("%shttp: [{match: [{uri: {exact: /r}}], %s}, {%s, route: [%s]}]", c.gateways(),
		c.pick("redirect: {authority: b.example}", "directResponse: {status: 418}", "redirect: {uri: /s}", "redirect: {scheme: https, port: 8443, redirectCode: 308}",
			"redirect: {derivePort: FROM_REQUEST_PORT, authority: c.example, uri: '%PREFIX()%/z'}", "directResponse: {status: 200, body: {string: x}}, headers: {response: {set: {a: b}}}"), action, c.route()))
}

func (c documentGenerator) routesOfPorts() string {
	return c.virtualService(fmt.Sprintf("%stcp: [{match: [{port: %s%s}], route: [%s]}, {route: [%s]}]", c.gateways(), c.pick("80", "81"),
		c.pick("", ", destinationSubnets: [240.9.9.0/24]", ", sourceLabels: {app: a}", ", gateways: [one/g0]", ", sourceNamespace: one"), c.route(), c.route()))
}

func (c documentGenerator) routesOfSNI() string {
	return ofNetworking("VirtualService", c.numbered("v", 6), c.namespace(), fmt.Sprintf("hosts: [a.example, b.example], %s%stls: [{match: [{sniHosts: [a.example]%s}], route: [%s]}, {match: [{sniHosts: [b.example]}], route: [%s]}]",
		c.exported(), c.gateways(), c.pick("", ", port: 81", ", sourceLabels: {app: a}"), c.route(), c.route()))
}

func (c documentGenerator) routesByParts() string {
	return c.virtualService(fmt.Sprintf("%shttp: [{%sdelegate: {name: part%s}}, {route: [%s]}]", c.gateways(), c.maybe("match: [{uri: {prefix: /a}}], "),
		c.pick("", ", namespace: one", ", namespace: two"), c.route()))
}

func (c documentGenerator) part() string {
	return ofNetworking("VirtualService", "part", c.namespace(), fmt.Sprintf("%shttp: [{match: [{uri: {prefix: /a/b}}], route: [%s]}, {route: [%s], mirrors: [{destination: %s, percentage: {value: 3}}]}]",
		c.exported(), c.route(), c.route(), c.destination()))
}

func (c documentGenerator) destinationRule() string {
	return ofNetworking("DestinationRule", c.numbered("r", 5), c.anyNamespace(), fmt.Sprintf("host: %q, %s%strafficPolicy: {%s}, subsets: [%s]", c.host(), c.exported(),
		c.pick("", "", "workloadSelector: {matchLabels: {app: a}}, "), c.trafficPolicy(),
		c.pick("{name: v1, labels: {version: v1}}", "", "{name: v1, labels: {version: v1}}, {name: v2, labels: {version: v2}, trafficPolicy: {"+c.trafficPolicy()+"}}")))
}

func (c documentGenerator) trafficPolicy() string {
	policy := c.pick("loadBalancer: {consistentHash: {httpHeaderName: x}}", "loadBalancer: {simple: RANDOM}", "loadBalancer: {consistentHash: {useSourceIp: true}}",
		"connectionPool: {tcp: {idleTimeout: 9s}}", "tls: {mode: SIMPLE}", "tls: {mode: SIMPLE, credentialName: cred}", "tls: {mode: MUTUAL, credentialName: cred}", "tls: {mode: DISABLE}",
		"tls: {mode: ISTIO_MUTUAL}", "tunnel: {targetHost: t.example, targetPort: 99}", "connectionPool: {http: {h2UpgradePolicy: UPGRADE}}", "outlierDetection: {consecutive5xxErrors: 3}",
		"loadBalancer: {localityLbSetting: {enabled: true, failover: [{from: r1, to: r2}]}}, outlierDetection: {consecutive5xxErrors: 2}", "loadBalancer: {warmup: {duration: 10s, minimumPercent: 5, aggression: 2}}", "proxyProtocol: {version: V2}",
		"tls: {mode: SIMPLE, caCertificates: /a.pem, sni: x.example, subjectAltNames: [x.example]}", "tls: {mode: MUTUAL, clientCertificate: /c.pem, privateKey: /k.pem, caCertificates: /a.pem, caCrl: /l.pem}", "tls: {mode: SIMPLE, insecureSkipVerify: true}",
		"loadBalancer: {simple: LEAST_REQUEST, localityLbSetting: {distribute: [{from: r1/z1, to: {r1/z1: 80, r2: 20}}]}}", "loadBalancer: {localityLbSetting: {failoverPriority: [version, 'topology.istio.io/network']}}, outlierDetection: {}",
		"loadBalancer: {consistentHash: {httpCookie: {name: x, ttl: 9s, path: /}, ringHash: {minimumRingSize: 9}}}", "loadBalancer: {consistentHash: {httpQueryParameterName: q, maglev: {tableSize: 101}}}", "loadBalancer: {simple: PASSTHROUGH}",
		"retryBudget: {percent: 30, minRetryConcurrency: 2}", "connectionPool: {tcp: {"+strings.TrimSuffix(c.pickFields("maxConnections: 7", "connectTimeout: 2s", "maxConnectionDuration: 9s", "tcpKeepalive: {probes: 2, time: 9s, interval: 3s}"), ", ")+"}}",
		"connectionPool: {http: {"+strings.TrimSuffix(c.pickFields("http1MaxPendingRequests: 5", "http2MaxRequests: 6", "maxRequestsPerConnection: 7", "maxRetries: 2", "idleTimeout: 8s", "useClientProtocol: true", "maxConcurrentStreams: 9", "http2KeepAlive: {interval: 9s, timeout: 3s}"), ", ")+"}}",
		"outlierDetection: {"+strings.TrimSuffix(c.pickFields("consecutiveGatewayErrors: 2", "interval: 2s", "baseEjectionTime: 9s", "maxEjectionPercent: 50", "minHealthPercent: 30", "splitExternalLocalOriginErrors: true", "consecutiveLocalOriginFailures: 3", "outlierDetectionHttpErrorCodes: ['500', '502']"), ", ")+"}")
	if c.IntN(5) == 0 {
		return fmt.Sprintf("portLevelSettings: [{port: {number: %s}, %s}]", c.pick("80", "81"), strings.Split(policy, ", outlier")[0])
	}
	return policy
}

func (c documentGenerator) gateway() string {
	return ofNetworking("Gateway", c.numbered("g", 3), c.namespace(), fmt.Sprintf("selector: %s, servers: [{port: {number: %s, name: http, protocol: %s}, hosts: [%q]}%s]",
		c.pick("{istio: edge}", "{istio: edge}", "{app: a}"), c.pick("80", "81"), c.pick("HTTP", "HTTP2", "TCP"), c.pick("*", "a.example", "*.example", "one/*", "./b.example"),
		c.pick("", ", {port: {number: 90, name: h, protocol: HTTP}, hosts: [\"*\"], defaultEndpoint: '127.0.0.1:8080'}", ", {port: {number: 81, name: i, protocol: HTTP}, hosts: [\"two/a.example\"], tls: {httpsRedirect: true}}")))
}

func (c documentGenerator) gatewayOfTLS() string {
	mode := c.pick("mode: SIMPLE, credentialName: cred", "mode: MUTUAL, credentialName: cred", "mode: PASSTHROUGH", "mode: ISTIO_MUTUAL", "mode: OPTIONAL_MUTUAL, credentialName: cred",
		"mode: SIMPLE, credentialName: cred, minProtocolVersion: TLSV1_2, maxProtocolVersion: TLSV1_3, cipherSuites: [ECDHE-RSA-AES256-GCM-SHA384]", "mode: SIMPLE, credentialNames: [cred, other]",
		"mode: MUTUAL, serverCertificate: /c.pem, privateKey: /k.pem, caCertificates: /a.pem, subjectAltNames: [x], caCrl: /l.pem", "mode: MUTUAL, credentialName: cred, caCertCredentialName: other",
		"mode: SIMPLE, tlsCertificates: [{serverCertificate: /c.pem, privateKey: /k.pem}, {serverCertificate: /d.pem, privateKey: /l.pem}]")
	protocol := c.pick("HTTPS", "TLS")
	return ofNetworking("Gateway", c.pick("auto", "g0", "g1"), c.namespace(), fmt.Sprintf("selector: {istio: edge}, servers: [{port: {number: 443, name: t, protocol: %s}, hosts: [%q], tls: {%s}}%s]",
		protocol, c.pick("a.example", "*.example", "b.example"), mode, c.maybe(", {port: {number: 15443, name: tls, protocol: TLS}, hosts: [\"*.local\"], tls: {mode: AUTO_PASSTHROUGH}}")))
}

func (c documentGenerator) sidecar() string {
	return ofNetworking("Sidecar", c.pick("default", "some"), c.anyNamespace(), fmt.Sprintf("%segress: [{hosts: [%q%s]}]", c.maybe("outboundTrafficPolicy: {mode: REGISTRY_ONLY}, "),
		c.pick("one/*", "*/*", "*/a.example", "./*", "two/blue.two.svc.cluster.local", "*/ext.one.svc.cluster.local", "two/ext.two.svc.cluster.local"), c.maybe(", 'two/*'")))
}

func (c documentGenerator) sidecarOfSome() string {
	ingress := c.pick("", "", "ingress: [{port: {number: 8080, protocol: HTTP, name: web}, defaultEndpoint: '127.0.0.1:9'}], ", "inboundConnectionPool: {http: {http2MaxRequests: 5}, tcp: {maxConnections: 3}}, ",
		"ingress: [{port: {number: 8443, protocol: HTTPS, name: web}, defaultEndpoint: '0.0.0.0:9', tls: {mode: SIMPLE, credentialName: cred}, connectionPool: {tcp: {maxConnections: 3}}}], ",
		"outboundTrafficPolicy: {mode: ALLOW_ANY, egressProxy: {host: red.one.svc.cluster.local, port: {number: 80}}}, ",
		"outboundTrafficPolicy: {mode: ALLOW_ANY, egressProxy: {host: ext.one.svc.cluster.local, port: {number: 80}}}, ")
	return ofNetworking("Sidecar", "pick", c.namespace(), fmt.Sprintf("workloadSelector: {labels: %s}, %segress: [{port: {number: 80, name: http, protocol: %s}, %shosts: [%q]}, {hosts: [%q]}]",
		c.labels(), ingress, c.pick("HTTP", "TCP"), c.pick("", "", "bind: 127.193.3.9, ", "captureMode: NONE, bind: 127.193.3.9, "), c.pick("one/*", "*/*", "*/ext.one.svc.cluster.local"), c.pick("one/*", "*/*", "two/*")))
}
