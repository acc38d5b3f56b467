package config

import "time"

// Health holds the limits beyond which a disconnected proxy or a frozen Envoy counts as unhealthy.
type Health struct {
	// LossLimit is how long the control plane may be unreachable before the proxy is not ready; 0 for no limit.
	LossLimit time.Duration
	// EnvoySilence is how long Envoy may not answer before the liveness check fails; 0 for no limit.
	EnvoySilence time.Duration
}

// defaultEnvoySilence is longer than the largest configuration blocks Envoy's main thread.
const defaultEnvoySilence = time.Minute

// resolveHealth resolves the health limits. LossLimit is off by default: an Envoy without a control plane continues to
// serve, and removing all proxies would turn an outage of the control plane into one of the mesh.
func (r *resolver) resolveHealth() {
	h := &r.config.Health
	h.LossLimit = r.env.duration("health.lossLimit", "UNREADY_AFTER_CONTROL_PLANE_LOSS", 0)
	h.EnvoySilence = r.env.duration("health.envoySilence", "ENVOY_SILENCE_LIMIT", defaultEnvoySilence)
}
