//go:build !linux

package backends

import "github.com/pilotfish-mesh/pilotfish/iptables"

type legacy struct{}

func (*legacy) open() {}

func (*legacy) close() {}

func (*legacy) hasRules(int, ...string) (bool, error) { return false, nil }

func foreignLegacy(int) ([]iptables.ForeignChain, error) { return nil, nil }

// LegacyRules returns no rules on this system.
func LegacyRules(int) ([]iptables.PlacedRule, error) { return nil, nil }
