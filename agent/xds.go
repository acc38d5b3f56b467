package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/pilotfish-mesh/pilotfish/xdsproxy"
)

// longestTap bounds how long one tap may last.
const longestTap = time.Hour

// tapOrder asks for what passes between Envoy, agent and control plane.
type tapOrder struct {
	Types    []string      `json:"types,omitempty"`
	Name     string        `json:"name,omitempty"`
	Contents bool          `json:"contents,omitempty"`
	For      time.Duration `json:"for"`
}

// offerXDS offers what the relay knows on the control socket.
func (a *Agent) offerXDS(relay *xdsproxy.Relay) {
	a.control.Handle("GET /xds/status", answer(func(context.Context, struct{}) (xdsproxy.Status, error) { return relay.Status(), nil }))
	a.control.Handle("GET /xds/history", answer(func(context.Context, struct{}) (xdsproxy.History, error) { return relay.History(), nil }))
	a.control.Handle("POST /xds/tap", serveTap(relay))
}

// serveTap writes one JSON object a line, as things happen, until the time is over or the caller goes.
func serveTap(relay *xdsproxy.Relay) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var o tapOrder
		if err := json.NewDecoder(r.Body).Decode(&o); err != nil {
			refuse(w, fmt.Errorf("reading the order: %w", err))
			return
		}
		if o.For <= 0 || o.For > longestTap {
			refuse(w, fmt.Errorf("a tap lasts up to %s", longestTap))
			return
		}
		tap, err := relay.OpenTap(xdsproxy.TapOptions{Types: o.Types, Name: o.Name, Contents: o.Contents})
		if err != nil {
			refuse(w, refusal{err, http.StatusConflict})
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), o.For)
		defer cancel()
		writeTap(ctx, w, tap)
	})
}

// writeTap begins its answer at once, so that the caller knows that what happens from now on is in it.
func writeTap(ctx context.Context, w http.ResponseWriter, tap *xdsproxy.Tap) {
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.WriteHeader(http.StatusOK)
	out, lines := http.NewResponseController(w), json.NewEncoder(w)
	lines.SetEscapeHTML(false)
	_ = out.Flush() // a caller who is gone ends the context
	_ = tap.Follow(ctx, func(l xdsproxy.TapLine) error {
		if err := lines.Encode(l); err != nil {
			return err
		}
		return out.Flush()
	})
}
