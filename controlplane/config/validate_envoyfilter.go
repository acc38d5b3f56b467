package config

import networking "istio.io/api/networking/v1alpha3"

func validateEnvoyFilter(_ scope, _ *networking.EnvoyFilter) {}
