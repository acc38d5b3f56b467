package envoy

import "fmt"

// AbsorbParentMessages binds the socket of a parent Envoy that has ended, and receives and discards the child's
// messages to it. Without it, the child blocks for seconds and then aborts, because it expects its parent to end only
// on its own order. h.Epoch is the parent's epoch.
//
// The child must run with --skip-hot-restart-parent-stats, as HotRestart's arguments specify: otherwise it would wait
// for a response with statistics.
func (h HotRestart) AbsorbParentMessages() (end func(), err error) {
	conn, err := listenReplacing(h.User, fmt.Sprintf("%s_parent_%d", h.socketPrefix(), h.socketID(h.Epoch)))
	if err != nil {
		return func() {}, fmt.Errorf("replacing the socket of the parent Envoy: %w", err)
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
