//go:build !linux

package conntrack

// DeleteStale does nothing on this system.
func DeleteStale(int, Stale) error { return nil }
