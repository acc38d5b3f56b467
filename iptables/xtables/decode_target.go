package xtables

import (
	"fmt"
	"strconv"

	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// target decodes the target after -j, and its options.
func (d *decoder) target() error {
	name := d.next()
	v := &d.rule.Verdict
	switch name {
	case "RETURN", "ACCEPT", "DROP", "REJECT":
		v.Action = iptables.Action(name)
	case "REDIRECT":
		v.Action = iptables.Redirect
	case "TPROXY":
		v.Action, v.Mark.Mask = iptables.TransparentProxy, ^uint32(0)
	case "MARK":
		v.Action = iptables.SetMark
	case "CONNMARK": // the action depends on the target's options
	case "CT":
		v.Action = iptables.Zone
	default:
		if !ours(name) {
			return fmt.Errorf("%w: target %s", errNotInModel, name)
		}
		v.Action, v.Chain = iptables.Jump, modelName(name)
	}
	for len(d.words) > 0 {
		if err := d.targetOption(name, d.next()); err != nil {
			return err
		}
	}
	return nil
}

func (d *decoder) targetOption(target, option string) error {
	v := &d.rule.Verdict
	switch target + " " + option {
	case "REDIRECT --to-ports", "TPROXY --on-port":
		return d.number(&v.Port)
	case "CT --zone":
		return d.number(&v.ZoneID)
	case "TPROXY --on-ip":
		if ip := d.next(); ip != "0.0.0.0" && ip != "::" {
			return fmt.Errorf("%w: TPROXY to %s", errNotInModel, ip)
		}
	case "TPROXY --tproxy-mark", "MARK --set-xmark":
		m, err := parseMark(d.next())
		if err != nil {
			return err
		}
		v.Mark = *m
	case "CONNMARK --save-mark":
		v.Action = iptables.SaveMark
	case "CONNMARK --restore-mark":
		v.Action = iptables.RestoreMark
	case "REJECT --reject-with":
		if how := d.next(); how != "tcp-reset" && how != "icmp-port-unreachable" && how != "icmp6-port-unreachable" {
			return fmt.Errorf("%w: REJECT with %s", errNotInModel, how)
		}
	case "CONNMARK --nfmask", "CONNMARK --ctmask":
		if mask := d.next(); mask != "0xffffffff" {
			return fmt.Errorf("%w: %s %s", errNotInModel, option, mask)
		}
	default:
		return fmt.Errorf("%w: %s %s", errNotInModel, target, option)
	}
	return nil
}

func (d *decoder) number(to *uint16) error {
	word := d.next()
	n, err := strconv.ParseUint(word, 10, 16)
	if err != nil {
		return fmt.Errorf("%w: number %s", errNotInModel, word)
	}
	*to = uint16(n)
	return nil
}
