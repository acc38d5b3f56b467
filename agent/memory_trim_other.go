//go:build !linux

package agent

// programPages are the program's own read-only pages. The agent drops them only on Linux.
type programPages struct{}

func readProgramPages() programPages { return programPages{} }

func (programPages) drop() {}
