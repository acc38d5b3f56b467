package agent

import (
	"math"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/crashbudget"
)

// envoyFailures is the number of exits of Envoy in quick succession after which the agent stops restarting it.
const envoyFailures = 5

// envoyBudget returns the budget for restarts of Envoy.
func envoyBudget() *crashbudget.Budget {
	return &crashbudget.Budget{Failures: envoyFailures, HalfLife: time.Minute, MinWait: 100 * time.Millisecond, MaxWait: 10 * time.Second}
}

// componentBudget returns a budget that allows any number of restarts of a component: a proxy with old certificates or
// configuration is better than none.
func componentBudget() *crashbudget.Budget {
	return &crashbudget.Budget{Failures: math.Inf(1), HalfLife: time.Minute, MinWait: 100 * time.Millisecond, MaxWait: 15 * time.Second}
}
