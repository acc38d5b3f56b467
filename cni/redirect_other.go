//go:build !linux

package cni

import (
	"context"
	"errors"
	"net/netip"
	"os"
)

var errLinux = errors.New("the CNI plugin works only on Linux")

func openNetNS(string) (*os.File, error)                   { return nil, errLinux }
func addressesIn(*os.File) ([]netip.Addr, error)           { return nil, errLinux }
func (kernel) apply(context.Context, *plan) error          { return errLinux }
func (kernel) check(context.Context, *plan) error          { return errLinux }
func (kernel) repairRules(context.Context, *os.File) error { return errLinux }
func (kernel) clean(context.Context, *os.File) error       { return errLinux }

func identify(*os.File) (nsID, error) { return nsID{}, errLinux }
func hasProcesses(nsID) (bool, error) { return false, errLinux }
