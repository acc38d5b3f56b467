//go:build !linux

package backends

func hasLegacyTables(int) (bool, error) { return false, nil }
