//go:build !race

package xdsproxy

// detector says that the race detector is in this program.
const detector = false
