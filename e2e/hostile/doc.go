// Package hostile attacks the built binaries. Each attack has a position from which the attacker acts, a limit on what it may
// reach or cost, and a legitimate client that must be served meanwhile.
package hostile
