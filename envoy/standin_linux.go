package envoy

import "fmt"

// StandIn takes the place of an older Envoy that has ended, for the newer one that took over from it: what that one still
// has to say to it is received, and dropped. Without it the newer one would wait for seconds, and then abort: it can lose
// its predecessor only by its own order. The epoch is the older one's.
//
// The newer one has to run with --skip-hot-restart-parent-stats, as it does by HotRestart's arguments: for statistics it
// would wait for an answer.
func (h HotRestart) StandIn() (end func(), err error) {
	conn, err := listenInPlace(h.User, fmt.Sprintf("%s_parent_%d", h.sockets(), h.socketID(h.Epoch)))
	if err != nil {
		return func() {}, fmt.Errorf("standing in for an Envoy that has ended: %w", err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buffer := make([]byte, 4<<10)
		for {
			if _, _, err := conn.ReadFromUnix(buffer); err != nil {
				return
			}
		}
	}()
	return func() { _ = conn.Close(); <-done }, nil
}
