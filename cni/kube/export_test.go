package kube

import "time"

// WaitFor has the token waited for, for so long: machines of tests are slow.
func (l *LastingToken) WaitFor(d time.Duration) { l.wait = d }
