//go:build !linux

package xt

import "errors"

func (namespace) within(func() error) error { return errors.New("iptables is only on Linux") }
