package iptables

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Names looks up the IDs of users and groups. If a function is nil, only numeric IDs are accepted.
type Names struct {
	User  func(name string) (uint32, error)
	Group func(name string) (uint32, error)
}

// maxList is the maximum number of entries of a list option. The longest list in Istio's documentation has a few dozen.
const maxList = 1024

// splitList splits a comma-separated list, trims spaces, and removes empty entries.
func splitList(text string) ([]string, error) {
	parts := strings.Split(text, ",")
	if len(parts) > maxList {
		return nil, fmt.Errorf("%d entries are too many: the maximum is %d; merge adjacent entries into ranges", len(parts), maxList)
	}
	parts = slices.DeleteFunc(parts, func(s string) bool { return strings.TrimSpace(s) == "" })
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	return parts, nil
}

// parseList parses each entry of a comma-separated list, and removes duplicates.
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

var errStar = errors.New(`"*" cannot be combined with other entries: use either "*" or a list`)

// parseChoice parses "*", for which it returns all = true, or a list.
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
		return 0, fmt.Errorf("%q is not a port: use a number from 1 to 65535", text)
	}
	return uint16(n), nil
}

// parsePortRange parses a port or a range. It accepts both "80-90" and "80:90", because each of Istio's back ends accepts
// only one of the two.
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
		err = fmt.Errorf("%q is not a port range: use two numbers from 1 to 65535, such as 8000-8010", text)
	case to < from:
		err = fmt.Errorf("%q is not a port range: the first port is greater than the last", text)
	}
	return PortRange{from, to}, err
}

func parseCIDR(text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return p, fmt.Errorf("%q is not a CIDR: use an address and a prefix length, such as 10.0.0.0/8 or fd00::/8", text)
	}
	if p.Addr().Is4In6() {
		return p, fmt.Errorf("%q is an IPv4-mapped IPv6 address: use the IPv4 notation", text)
	}
	if masked := p.Masked(); masked != p {
		return p, fmt.Errorf("%q has host bits: use %s for the network, or %s/%d for the single address", text, masked, p.Addr(), p.Addr().BitLen())
	}
	return p, nil
}

// parseInterface accepts only interface names that the kernel accepts, and rejects "+": iptables treats a trailing "+" as a
// wildcard, nftables does not.
func parseInterface(text string) (string, error) {
	bad := func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune(`/:"'\+*!`, r) }
	if len(text) > 15 || text == "." || text == ".." || strings.ContainsFunc(text, bad) {
		return "", fmt.Errorf("%q is not an interface name: use at most 15 characters, without spaces, quotes, and / : \\ + * !", text)
	}
	return text, nil
}

// parseID returns a parser for IDs of users or groups (kind). An ID is a number, or a name that find resolves.
func parseID(kind string, find func(string) (uint32, error)) func(string) (uint32, error) {
	return func(text string) (uint32, error) {
		if n, err := strconv.ParseUint(text, 10, 32); err == nil && n < 1<<32-1 {
			return uint32(n), nil
		}
		if find == nil || strings.ContainsFunc(text[:1], func(r rune) bool { return r >= '0' && r <= '9' || r == '-' }) {
			return 0, fmt.Errorf("%q is not a %s: use a number from 0 to 4294967294", text, kind)
		}
		id, err := find(text)
		if err != nil {
			return 0, fmt.Errorf("looking up %s %q: %w; use its numeric ID", kind, text, err)
		}
		return id, nil
	}
}

func parseBool(text string) (bool, error) {
	b, err := strconv.ParseBool(text)
	if err != nil {
		return false, fmt.Errorf("%q is not a boolean: use true or false", text)
	}
	return b, nil
}

func parseAddress(text string) (netip.Addr, error) {
	a, err := netip.ParseAddr(text)
	if err != nil {
		return a, fmt.Errorf("%q is not an IP address", text)
	}
	return a.Unmap().WithZone(""), nil
}
