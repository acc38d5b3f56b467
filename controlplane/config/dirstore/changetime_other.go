//go:build !linux

package dirstore

import (
	"io/fs"
	"time"
)

// changeTime returns the zero time: it is not read on this platform.
func changeTime(fs.FileInfo) time.Time { return time.Time{} }
