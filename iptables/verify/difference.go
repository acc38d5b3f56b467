package verify

import (
	"reflect"

	"github.com/pilotfish-mesh/pilotfish/iptables"
)

func differences(want, got *iptables.RuleSet) []string {
	if reflect.DeepEqual(iptables.Canonical(want), iptables.Canonical(got)) {
		return nil
	}
	return []string{"the rules differ"}
}
