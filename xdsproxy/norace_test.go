//go:build !race

package xdsproxy

// hasRaceDetector reports whether the program was built with the race detector.
const hasRaceDetector = false
