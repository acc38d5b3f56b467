//go:build !linux

package sds

func isLocalFS(string) bool { return false }
