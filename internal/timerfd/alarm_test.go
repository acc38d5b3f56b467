package timerfd

import (
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func eachKind(t *testing.T, test func(t *testing.T, begin func(func()) Alarm)) {
	t.Helper()
	t.Run("of the system", func(t *testing.T) { test(t, NewAlarm) })
	t.Run("of the runtime", func(t *testing.T) { test(t, newTimerAlarm) })
}

func TestAlarmRingsEachTimeThatItWasSet(t *testing.T) {
	eachKind(t, func(t *testing.T, begin func(func()) Alarm) {
		rung := make(chan struct{})
		a := begin(func() { rung <- struct{}{} })
		defer a.Close()
		for _, after := range []time.Duration{0, time.Millisecond, 20 * time.Millisecond} {
			a.Set(after)
			<-rung
		}
	})
}

func TestResetDelaysAlarm(t *testing.T) {
	eachKind(t, func(t *testing.T, begin func(func()) Alarm) {
		rung := make(chan time.Time, 2)
		a := begin(func() { rung <- time.Now() })
		defer a.Close()
		a.Set(time.Hour)
		began := time.Now()
		a.Set(50 * time.Millisecond)
		if took := (<-rung).Sub(began); took < 50*time.Millisecond {
			t.Errorf("it rang after %v", took)
		}
	})
}

func TestClosedAlarmIsSilent(t *testing.T) {
	eachKind(t, func(t *testing.T, begin func(func()) Alarm) {
		a := begin(func() { t.Error("it rang") })
		a.Set(time.Hour)
		a.Close()
		a.Close()
		a.Set(0)
	})
}
