package controlplane

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// deadlineRecorder records the deadlines that a handler sets for its connection.
type deadlineRecorder struct {
	*httptest.ResponseRecorder
	read, write time.Time
}

func (r *deadlineRecorder) SetReadDeadline(at time.Time) error {
	r.read = at
	return nil
}

func (r *deadlineRecorder) SetWriteDeadline(at time.Time) error {
	r.write = at
	return nil
}

func TestDebugPagesLimitTheTimeToReadARequest(t *testing.T) {
	w := &deadlineRecorder{ResponseRecorder: httptest.NewRecorder()}
	before := time.Now()
	served := false
	restrictPage(platformCaller, func(http.ResponseWriter, *http.Request, debugCaller) {
		served = true
		for what, limit := range map[string]struct {
			deadline time.Time
			after    time.Duration
		}{"read": {w.read, 30 * time.Second}, "write": {w.write, time.Minute}} {
			if limit.deadline.Before(before.Add(limit.after)) || limit.deadline.After(time.Now().Add(limit.after)) {
				t.Errorf("the %s deadline is %s after the request, want %s", what, limit.deadline.Sub(before), limit.after)
			}
		}
	})(w, httptest.NewRequest(http.MethodPost, "/debug/diff", nil))
	if !served {
		t.Error("the page is not served")
	}
}
