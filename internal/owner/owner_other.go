//go:build !linux

package owner

import "os"

func give(path string, o *Owner) error { return os.Lchown(path, int(o.UID), int(o.GID)) }

// CheckCapabilities returns an error if this process cannot run a program as the owner.
func (o *Owner) CheckCapabilities() error { return nil }
