//go:build !linux

package agent

// pages are the program's own read-only pages, which only Linux is asked to drop.
type pages struct{}

func program() pages { return pages{} }

func (pages) forget() {}
