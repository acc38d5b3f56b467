//go:build !linux

package wake

import "errors"

func newKernelAlarm(func()) (Alarm, error) { return nil, errors.ErrUnsupported }
