package envoy

import "fmt"

// AbsorbParentMessages replaces the socket of a parent Envoy that has exited. It discards the messages that the child
// sends to this socket, until the caller calls stop. Otherwise the child blocks for seconds and then aborts, because it
// expects the parent to run until the child terminates it. h.Epoch is the parent's epoch.
//
// The child must run with --skip-hot-restart-parent-stats, which HotRestart's arguments contain. Otherwise it would
// wait for a response with statistics.
func (h HotRestart) AbsorbParentMessages() (stop func(), err error) {
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
