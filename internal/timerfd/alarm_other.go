//go:build !linux

package timerfd

import "errors"

func newKernelAlarm(func()) (Alarm, error) { return nil, errors.ErrUnsupported }
