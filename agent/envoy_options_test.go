package agent

import (
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/agent/logging"
	"github.com/pilotfish-mesh/pilotfish/envoy"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

func TestCoreDumpsAreEnabledByVariable(t *testing.T) {
	testenv.InDir(t, nil)
	e := &envoySupervisor{Agent: &Agent{levels: &logging.LevelController{}}}
	for given, want := range map[string]bool{"": false, "ISTIO_ENVOY_ENABLE_CORE_DUMP=true": true} {
		e.Config = resolve(t, env(given, "INSTANCE_IP=10.0.0.1"))
		if got := e.options(envoy.Binary{}).EnableCoreDump; got != want {
			t.Errorf("%q: %v", given, got)
		}
	}
}

// Envoy's default drain time is ten minutes.
func TestZeroDrainDurationBecomesMinimum(t *testing.T) {
	testenv.InDir(t, nil)
	e := &envoySupervisor{Agent: &Agent{levels: &logging.LevelController{}}}
	for text, want := range map[string]time.Duration{"0s": time.Second, "0.2s": time.Second, "30s": 30 * time.Second} {
		e.Config = resolve(t, env(`PROXY_CONFIG={drainDuration: `+text+`}`, "INSTANCE_IP=10.0.0.1"))
		if got := e.options(envoy.Binary{}).DrainTime; got != want {
			t.Errorf("%s: Envoy gets %v, want %v", text, got, want)
		}
	}
}
