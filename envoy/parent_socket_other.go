//go:build !linux

package envoy

import "errors"

// AbsorbParentMessages works on Linux only.
func (h HotRestart) AbsorbParentMessages() (stop func(), err error) {
	return func() {}, errors.New("hot restart works on Linux only")
}
