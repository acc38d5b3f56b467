package config

import "time"

// Health contains the limits after which the agent reports a disconnected proxy or an unresponsive Envoy as unhealthy.
type Health struct {
	// LossLimit is how long the proxy may have no connection to the control plane before it is not ready; 0 for no
	// limit.
	LossLimit time.Duration
	// EnvoySilence is how long Envoy may send no response before the liveness check fails; 0 for no limit.
	EnvoySilence time.Duration
}

// defaultEnvoySilence is longer than the time for which a very large configuration update blocks Envoy's main thread.
const defaultEnvoySilence = time.Minute

// resolveHealth resolves the health limits. By default there is no LossLimit, because Envoy continues to serve without
// a control plane. If all proxies became unready, an outage of the control plane would become an outage of the mesh.
func (r *resolver) resolveHealth() {
	h := &r.config.Health
	h.LossLimit = r.env.duration("health.lossLimit", "UNREADY_AFTER_CONTROL_PLANE_LOSS", 0)
	h.EnvoySilence = r.env.duration("health.envoySilence", "ENVOY_SILENCE_LIMIT", defaultEnvoySilence)
}
