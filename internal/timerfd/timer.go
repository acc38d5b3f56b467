// Package timerfd wakes an idle process with a kernel timer, which wakes only one thread. Two threads wait for a timer
// of Go's runtime, and the kernel may delay the one that runs the timer by up to a thousandth of the time; the other
// thread then polls some twenty times.
package timerfd

import (
	"sync"
	"time"
)

// Alarm calls a function after a time without news. Its methods are safe for concurrent use.
type Alarm interface {
	// Set has the function called once after that time, in place of what was set before.
	Set(after time.Duration)
	// Close ends the alarm; the function may be running still. It may be called by the function, and more than once.
	Close()
}

// NewAlarm makes an alarm, which is not set yet. The function is called on a goroutine of the alarm's.
func NewAlarm(call func()) Alarm {
	if a, err := newKernelAlarm(call); err == nil {
		return a
	}
	return newTimerAlarm(call)
}

// timerAlarm is one by a timer of the runtime.
type timerAlarm struct {
	mu     sync.Mutex
	timer  *time.Timer
	closed bool
}

func newTimerAlarm(call func()) Alarm {
	a := &timerAlarm{timer: time.AfterFunc(time.Hour, call)}
	a.timer.Stop()
	return a
}

func (a *timerAlarm) Set(after time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.closed {
		a.timer.Reset(after)
	}
}

func (a *timerAlarm) Close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	a.timer.Stop()
}
