package config

import (
	"strings"

	networkingbeta "istio.io/api/networking/v1beta1"
)

func validateProxyConfig(s validator, p *networkingbeta.ProxyConfig) {
	s.field("selector").checkSelector(p.GetSelector())
	s.field("concurrency").checkRange(int64(p.GetConcurrency().GetValue()), 0, 1<<14, "set 0 to use all processors")
	for name, value := range p.GetEnvironmentVariables() {
		at := s.field("environmentVariables").key(name)
		switch {
		case name == "" || strings.ContainsAny(name, "=\x00"):
			at.refuse(name, "not the name of a variable", "set a name without an equals sign")
		case strings.ContainsRune(value, 0):
			at.refuse(value, "the value of a variable must not contain a zero byte", "remove the zero byte")
		}
	}
}
