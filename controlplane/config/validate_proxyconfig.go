package config

import networkingbeta "istio.io/api/networking/v1beta1"

func validateProxyConfig(s scope, p *networkingbeta.ProxyConfig) {
	s.field("selector").selector(p.GetSelector())
	s.field("concurrency").notNegative(p.GetConcurrency().GetValue())
}
