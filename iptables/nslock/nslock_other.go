//go:build !linux

package nslock

import (
	"context"
	"errors"
)

// Hold fails: there are no network namespaces.
func Hold(context.Context, int) (release func(), err error) {
	return nil, errors.New("network namespaces are of Linux")
}
