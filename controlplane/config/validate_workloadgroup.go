package config

import networking "istio.io/api/networking/v1alpha3"

func validateWorkloadGroup(_ scope, _ *networking.WorkloadGroup) {}
