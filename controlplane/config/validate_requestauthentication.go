package config

import security "istio.io/api/security/v1beta1"

func validateRequestAuthentication(_ scope, _ *security.RequestAuthentication) {}
