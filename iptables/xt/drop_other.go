//go:build !linux

package xt

import "github.com/pilotfish-mesh/pilotfish/iptables"

func (*Backend) dropTable(tool, iptables.Table, own) {}
