//go:build !linux

package xtables

import "errors"

func (namespace) runInside(func() error) error { return errors.New("iptables is only on Linux") }
