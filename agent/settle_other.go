//go:build !linux

package agent

func forgetProgram() {}
