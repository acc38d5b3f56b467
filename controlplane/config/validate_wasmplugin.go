package config

import extensions "istio.io/api/extensions/v1alpha1"

func validateWasmPlugin(_ scope, _ *extensions.WasmPlugin) {}
