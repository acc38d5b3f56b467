package kube

import "time"

// WaitFor sets how long Token waits for a pending request. Test machines are slow.
func (l *LastingToken) WaitFor(d time.Duration) { l.wait = d }
