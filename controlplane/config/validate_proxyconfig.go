package config

import networkingbeta "istio.io/api/networking/v1beta1"

func validateProxyConfig(_ scope, _ *networkingbeta.ProxyConfig) {}
