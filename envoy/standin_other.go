//go:build !linux

package envoy

import "errors"

// StandIn works on Linux only.
func (h HotRestart) StandIn() (end func(), err error) {
	return func() {}, errors.New("hot restart works on Linux only")
}
