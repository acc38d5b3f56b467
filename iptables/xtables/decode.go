package xtables

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// errNotInModel is the error for an installed rule that the type iptables.Rule cannot express.
var errNotInModel = errors.New("pilotfish does not install rules of this form")

// decodeRule decodes a rule in the output of iptables-save, without "-A chain". It returns errNotInModel for rules that
// renderRule never writes.
func decodeRule(line string) (iptables.Rule, error) {
	words, err := split(line)
	if err != nil {
		return iptables.Rule{}, err
	}
	d := decoder{words: words}
	for len(d.words) > 0 {
		if err := d.option(); err != nil {
			return iptables.Rule{}, fmt.Errorf("%q: %w", line, err)
		}
	}
	if d.rule.Verdict.Action == "" {
		return iptables.Rule{}, fmt.Errorf("%q: %w: the rule has no target", line, errNotInModel)
	}
	return d.rule, nil
}

type decoder struct {
	words   []string
	rule    iptables.Rule
	module  string // match extension of the last -m option
	negated bool
}

// next removes and returns the next word; "" if there is none.
func (d *decoder) next() string {
	if len(d.words) == 0 {
		return ""
	}
	w := d.words[0]
	d.words = d.words[1:]
	return w
}

func (d *decoder) option() error {
	name := d.next()
	if name == "!" {
		d.negated = true
		name = d.next()
	}
	defer func() { d.negated = false }()
	known, ok := decoders[name]
	if !ok {
		return fmt.Errorf("%w: %s", errNotInModel, name)
	}
	if d.negated && !slices.Contains(negatable, name) {
		return fmt.Errorf("%w: ! %s", errNotInModel, name)
	}
	return known(d)
}

var negatable = []string{"-s", "-d", "-o", "--dport", "--dports", "--uid-owner", "--gid-owner", "--mark", "--src-range", "--dst-range"}

// decoders maps each option that renderRule writes to its decoder.
var decoders = map[string]func(*decoder) error{
	"-s": func(d *decoder) error { return d.address(&d.rule.Match.Source, &d.rule.Match.NotSource) },
	"-d": func(d *decoder) error { return d.address(&d.rule.Match.Destination, &d.rule.Match.NotDestination) },
	"--src-range": func(d *decoder) error {
		return d.span(&d.rule.Match.Source, &d.rule.Match.NotSource)
	},
	"--dst-range": func(d *decoder) error {
		return d.span(&d.rule.Match.Destination, &d.rule.Match.NotDestination)
	},
	"-i":       func(d *decoder) error { return d.word(&d.rule.Match.InInterface) },
	"-o":       (*decoder).outInterface,
	"-p":       (*decoder).protocol,
	"-m":       (*decoder).matchModule,
	"--sport":  func(d *decoder) error { return d.ports(&d.rule.Match.SourcePorts, nil) },
	"--sports": func(d *decoder) error { return d.ports(&d.rule.Match.SourcePorts, nil) },
	"--dport": func(d *decoder) error {
		return d.ports(&d.rule.Match.DestinationPorts, &d.rule.Match.NotDestinationPorts)
	},
	"--dports": func(d *decoder) error {
		return d.ports(&d.rule.Match.DestinationPorts, &d.rule.Match.NotDestinationPorts)
	},
	"--uid-owner": func(d *decoder) error { return d.owner(&d.rule.Match.UIDs, &d.rule.Match.NotUIDs) },
	"--gid-owner": func(d *decoder) error { return d.owner(&d.rule.Match.GIDs, &d.rule.Match.NotGIDs) },
	"--mark":      (*decoder).mark,
	"--ctstate":   (*decoder).states,
	"--ctdir":     (*decoder).direction,
	"--comment":   func(d *decoder) error { return d.word(&d.rule.ID) },
	"-j":          (*decoder).target,
}

func (d *decoder) word(to *string) error {
	if *to != "" || len(d.words) == 0 {
		return errNotInModel
	}
	*to = d.next()
	return nil
}

// setNegation records whether an option is negated. If several options form one condition, it fails if only some of
// them are negated.
func (d *decoder) setNegation(already bool, negated *bool) error {
	switch {
	case negated == nil && d.negated, already && negated != nil && (*negated != d.negated || !d.negated):
		return errNotInModel
	case negated != nil:
		*negated = d.negated
	}
	return nil
}

func (d *decoder) address(to *[]netip.Prefix, negated *bool) error {
	if err := d.setNegation(len(*to) > 0, negated); err != nil {
		return err
	}
	word := d.next()
	p, err := netip.ParsePrefix(word)
	if err != nil {
		a, err := netip.ParseAddr(word)
		if err != nil {
			return fmt.Errorf("%w: address %s", errNotInModel, word)
		}
		p = netip.PrefixFrom(a, a.BitLen())
	}
	*to = append(*to, p)
	return nil
}

func (d *decoder) span(to *[]netip.Prefix, negated *bool) error {
	if err := d.setNegation(len(*to) > 0, negated); err != nil {
		return err
	}
	first, end, _ := strings.Cut(d.next(), "-")
	from, err1 := netip.ParseAddr(first)
	until, err2 := netip.ParseAddr(end)
	if err1 != nil || err2 != nil {
		return errNotInModel
	}
	for bits := 0; bits <= from.BitLen(); bits++ {
		if p, err := from.Prefix(bits); err == nil && p.Addr() == from && lastAddress(p) == until {
			*to = append(*to, p)
			return nil
		}
	}
	return fmt.Errorf("%w: the range %s-%s is not a prefix", errNotInModel, first, end)
}

func (d *decoder) outInterface() error {
	d.rule.Match.NotOut = d.negated
	return d.word(&d.rule.Match.OutInterface)
}

func (d *decoder) protocol() error {
	p := iptables.Protocol(d.next())
	if p != iptables.TCP && p != iptables.UDP {
		return fmt.Errorf("%w: protocol %s", errNotInModel, p)
	}
	d.rule.Match.Protocol = p
	return nil
}

func (d *decoder) ports(to *[]iptables.PortRange, negated *bool) error {
	if err := d.setNegation(len(*to) > 0, negated); err != nil {
		return err
	}
	for _, word := range strings.Split(d.next(), ",") {
		first, end, ranged := strings.Cut(word, ":")
		if !ranged {
			end = first
		}
		from, err1 := strconv.ParseUint(first, 10, 16)
		until, err2 := strconv.ParseUint(end, 10, 16)
		if err1 != nil || err2 != nil {
			return fmt.Errorf("%w: port %s", errNotInModel, word)
		}
		*to = append(*to, iptables.PortRange{First: uint16(from), Last: uint16(until)})
	}
	return nil
}

func (d *decoder) owner(to *[]uint32, negated *bool) error {
	if err := d.setNegation(len(*to) > 0, negated); err != nil {
		return err
	}
	word := d.next()
	id, err := strconv.ParseUint(word, 10, 32)
	if err != nil {
		return fmt.Errorf("%w: owner %s", errNotInModel, word)
	}
	*to = append(*to, uint32(id))
	return nil
}

func parseMark(word string) (*iptables.Mark, error) {
	value, mask, masked := strings.Cut(word, "/")
	m := iptables.Mark{Mask: ^uint32(0)}
	v, err := strconv.ParseUint(value, 0, 32)
	if err != nil {
		return nil, fmt.Errorf("%w: mark %s", errNotInModel, word)
	}
	m.Value = uint32(v)
	if masked {
		v, err := strconv.ParseUint(mask, 0, 32)
		if err != nil {
			return nil, fmt.Errorf("%w: mark %s", errNotInModel, word)
		}
		m.Mask = uint32(v)
	}
	return &m, nil
}

// matchModule decodes -m: it records the match extension to which the following options belong.
func (d *decoder) matchModule() error {
	d.module = d.next()
	return nil
}

func (d *decoder) direction() error {
	if d.next() != "REPLY" {
		return errNotInModel
	}
	d.rule.Match.Reply = true
	return nil
}

func (d *decoder) mark() error {
	m, err := parseMark(d.next())
	switch {
	case err != nil:
		return err
	case d.module == "mark" && d.rule.Match.Mark == nil:
		d.rule.Match.Mark, d.rule.Match.NotMark = m, d.negated
	case d.module == "connmark" && d.rule.Match.ConnMark == nil && !d.negated:
		d.rule.Match.ConnMark = m
	default:
		return errNotInModel
	}
	return nil
}

func (d *decoder) states() error {
	for _, word := range strings.Split(d.next(), ",") {
		s := iptables.State(strings.ToLower(word))
		switch s {
		case iptables.New, iptables.Established, iptables.Related, iptables.Invalid:
			d.rule.Match.States = append(d.rule.Match.States, s)
		default:
			return fmt.Errorf("%w: state %s", errNotInModel, word)
		}
	}
	slices.Sort(d.rule.Match.States) // iptables-save prints them in a fixed order
	return nil
}
