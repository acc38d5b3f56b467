package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/pilotfish-mesh/pilotfish/xdsproxy"
)

// maxTapDuration is the maximum duration of one tap.
const maxTapDuration = time.Hour

// TapRequest requests a copy of the xDS messages between Envoy, agent and control plane for a limited time.
type TapRequest struct {
	Types    []string      `json:"types,omitempty"`
	Name     string        `json:"name,omitempty"`
	Contents bool          `json:"contents,omitempty"`
	For      time.Duration `json:"for"`
}

// handleXDS registers the handlers of the xds commands on the control socket.
func (a *Agent) handleXDS(relay *xdsproxy.Relay) {
	a.control.Handle("GET /xds/status", jsonHandler(func(context.Context, struct{}) (xdsproxy.Status, error) { return relay.Status(), nil }))
	a.control.Handle("GET /xds/history", jsonHandler(func(context.Context, struct{}) (xdsproxy.History, error) { return relay.History(), nil }))
	a.control.Handle("POST /xds/tap", serveTap(relay))
}

// serveTap writes the tapped messages as one JSON object per line, until the requested duration has passed or the
// client disconnects.
func serveTap(relay *xdsproxy.Relay) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var o TapRequest
		if err := json.NewDecoder(r.Body).Decode(&o); err != nil {
			writeError(w, fmt.Errorf("reading the request: %w", err))
			return
		}
		if o.For <= 0 || o.For > maxTapDuration {
			writeError(w, fmt.Errorf("for %s: choose a duration above 0 and up to %s", o.For, maxTapDuration))
			return
		}
		tap, err := relay.OpenTap(xdsproxy.TapOptions{Types: o.Types, Name: o.Name, Contents: o.Contents})
		if err != nil {
			writeError(w, httpError{err, http.StatusConflict})
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), o.For)
		defer cancel()
		writeTap(ctx, w, tap)
	})
}

// writeTap writes the messages of a tap. It flushes the response header immediately, so that the client knows that the
// tap has started.
func writeTap(ctx context.Context, w http.ResponseWriter, tap *xdsproxy.Tap) {
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.WriteHeader(http.StatusOK)
	out, lines := http.NewResponseController(w), json.NewEncoder(w)
	lines.SetEscapeHTML(false)
	_ = out.Flush() // a failed flush means that the client has disconnected, which ends the context
	_ = tap.Follow(ctx, func(l xdsproxy.TapLine) error {
		if err := lines.Encode(l); err != nil {
			return err
		}
		return out.Flush()
	})
}

// OpenTap starts a tap. The returned reader contains a JSON object for each message from now on.
func (c *ControlClient) OpenTap(ctx context.Context, o TapRequest) (io.ReadCloser, error) {
	body, err := json.Marshal(o)
	if err != nil {
		return nil, fmt.Errorf("encoding the request: %w", err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, ControlBaseURL+"/xds/tap", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	response, err := c.http.Do(request)
	if err != nil {
		return nil, c.explainDialError(err)
	}
	if response.StatusCode == http.StatusOK {
		return response.Body, nil
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(response.Body, maxResponseBody))
	return nil, fmt.Errorf("the agent refuses the request: %s", strings.TrimSpace(string(text)))
}
