package route

import (
	"errors"

	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// Replace adds what is missing and takes away what is not wanted, wholly or not at all.
func (r *Routes) Replace(want *iptables.Routing, of iptables.Families) (Undo, error) {
	undoAdd, err := r.Add(want, of)
	if err != nil {
		return nil, err
	}
	undoPrune, err := r.Prune(want, of)
	if err != nil {
		return nil, errors.Join(err, undoAdd())
	}
	return func() error { return errors.Join(undoPrune(), undoAdd()) }, nil
}

// Find reads without knowing for which families there is something: for both, or for that which has it.
func (r *Routes) Find() (*iptables.Routing, []string, error) {
	var words []string
	for _, of := range []iptables.Families{iptables.BothFamilies, iptables.IPv4, iptables.IPv6} {
		found, strange, err := r.Read(of)
		if err != nil || (found != nil && len(strange) == 0) {
			return found, nil, err
		}
		words = append(words, strange...)
	}
	return nil, words, nil
}
