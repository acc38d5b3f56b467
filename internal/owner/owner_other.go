//go:build !linux

package owner

import "os"

func chownChecked(path string, o *Owner) error { return os.Lchown(path, int(o.UID), int(o.GID)) }

// CheckCapabilities returns nil: this system has no capabilities.
func (o *Owner) CheckCapabilities() error { return nil }
