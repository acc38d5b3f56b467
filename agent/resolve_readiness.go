package agent

import "time"

// HealthConfig says when a proxy that is cut off, or an Envoy that is frozen, counts as unwell.
type HealthConfig struct {
	// LossLimit is how long the control plane may be lost before the proxy is not ready; zero is for ever.
	LossLimit time.Duration
	// EnvoySilence is how long Envoy may leave questions unanswered before the agent is not alive; zero is for ever.
	EnvoySilence time.Duration
}

// defaultEnvoySilence is longer than the largest configuration keeps Envoy's main thread busy.
const defaultEnvoySilence = time.Minute

// readiness: an Envoy that has lost its control plane serves as before, so that taking it out of service by default would
// turn an outage of the control plane into one of everything.
func (r *resolver) readiness() {
	h := &r.config.Health
	h.LossLimit = r.env.duration("health.lossLimit", "UNREADY_AFTER_CONTROL_PLANE_LOSS", 0)
	h.EnvoySilence = r.env.duration("health.envoySilence", "ENVOY_SILENCE_LIMIT", defaultEnvoySilence)
}
