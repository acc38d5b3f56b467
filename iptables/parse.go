package iptables

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Names looks up the IDs of users and groups. A nil function knows no names.
type Names struct {
	User  func(name string) (uint32, error)
	Group func(name string) (uint32, error)
}

// maxList limits lists from user input; the largest list in Istio's documentation has a few dozen entries.
const maxList = 1024

func splitList(text string) ([]string, error) {
	parts := strings.Split(text, ",")
	if len(parts) > maxList {
		return nil, fmt.Errorf("%d entries are too many: at most %d; join neighbours to ranges", len(parts), maxList)
	}
	parts = slices.DeleteFunc(parts, func(s string) bool { return strings.TrimSpace(s) == "" })
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	return parts, nil
}

// parseList parses a list and removes duplicates.
func parseList[T comparable](text string, parse func(string) (T, error)) ([]T, error) {
	parts, err := splitList(text)
	if err != nil {
		return nil, err
	}
	var list []T
	var errs []error
	for _, part := range parts {
		v, err := parse(part)
		switch {
		case err != nil:
			errs = append(errs, err)
		case !slices.Contains(list, v):
			list = append(list, v)
		}
	}
	return list, errors.Join(errs...)
}

var errStar = errors.New(`"*" stands alone: write either "*" or a list`)

// parseChoice parses "*" or a list.
func parseChoice[T comparable](text string, parse func(string) (T, error)) (all bool, list []T, err error) {
	parts, err := splitList(text)
	if err != nil {
		return false, nil, err
	}
	if slices.Contains(parts, "*") {
		if len(parts) > 1 {
			return false, nil, errStar
		}
		return true, nil, nil
	}
	list, err = parseList(text, parse)
	return false, list, err
}

func parsePort(text string) (uint16, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("%q is no port: write a number from 1 to 65535", text)
	}
	return uint16(n), nil
}

// parsePortRange parses both notations of a range, because each of Istio's back ends accepts a different one.
func parsePortRange(text string) (PortRange, error) {
	first, last, isRange := strings.Cut(text, "-")
	if !isRange {
		first, last, isRange = strings.Cut(text, ":")
	}
	from, err := parsePort(first)
	if !isRange {
		return PortRange{from, from}, err
	}
	to, errTo := parsePort(last)
	switch {
	case err != nil || errTo != nil:
		err = fmt.Errorf("%q is no range of ports: write two numbers from 1 to 65535, as 8000-8010", text)
	case to < from:
		err = fmt.Errorf("%q is no range of ports: it ends before it begins", text)
	}
	return PortRange{from, to}, err
}

func parseCIDR(text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return p, fmt.Errorf("%q is no CIDR: write an address and the length of its prefix, as 10.0.0.0/8 or fd00::/8", text)
	}
	if p.Addr().Is4In6() {
		return p, fmt.Errorf("%q is an IPv4 address in IPv6: write it as IPv4", text)
	}
	if masked := p.Masked(); masked != p {
		return p, fmt.Errorf("%q has host bits: write %s for the network, or %s/%d for the address", text, masked, p.Addr(), p.Addr().BitLen())
	}
	return p, nil
}

// parseInterface accepts only names that the kernel accepts. A trailing "+" is refused: it is a pattern in only one
// back end.
func parseInterface(text string) (string, error) {
	bad := func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune(`/:"'\+*!`, r) }
	if len(text) > 15 || text == "." || text == ".." || strings.ContainsFunc(text, bad) {
		return "", fmt.Errorf("%q is no name of an interface: at most 15 letters, without space, quotes, / : + * !", text)
	}
	return text, nil
}

// parseID returns a parser of a number, or of a name that find can resolve.
func parseID(kind string, find func(string) (uint32, error)) func(string) (uint32, error) {
	return func(text string) (uint32, error) {
		if n, err := strconv.ParseUint(text, 10, 32); err == nil && n < 1<<32-1 {
			return uint32(n), nil
		}
		if find == nil || strings.ContainsFunc(text[:1], func(r rune) bool { return r >= '0' && r <= '9' || r == '-' }) {
			return 0, fmt.Errorf("%q is no %s: write a number from 0 to 4294967294", text, kind)
		}
		id, err := find(text)
		if err != nil {
			return 0, fmt.Errorf("%s %q is not known here (%w): write its number", kind, text, err)
		}
		return id, nil
	}
}

func parseBool(text string) (bool, error) {
	b, err := strconv.ParseBool(text)
	if err != nil {
		return false, fmt.Errorf("%q is neither true nor false", text)
	}
	return b, nil
}

func parseAddress(text string) (netip.Addr, error) {
	a, err := netip.ParseAddr(text)
	if err != nil {
		return a, fmt.Errorf("%q is no IP address", text)
	}
	return a.Unmap().WithZone(""), nil
}
