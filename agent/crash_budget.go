package agent

import (
	"math"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/crashbudget"
)

// envoyFailures is the number of times that Envoy may exit in quick succession.
const envoyFailures = 5

// envoyBudget returns the budget for restarts of Envoy.
func envoyBudget() *crashbudget.Budget {
	return &crashbudget.Budget{Failures: envoyFailures, HalfLife: time.Minute, MinWait: 100 * time.Millisecond, MaxWait: 10 * time.Second}
}

// componentBudget returns a budget without a limit: a proxy with old certificates or configuration is better than none.
func componentBudget() *crashbudget.Budget {
	return &crashbudget.Budget{Failures: math.Inf(1), HalfLife: time.Minute, MinWait: 100 * time.Millisecond, MaxWait: 15 * time.Second}
}
