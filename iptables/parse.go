package iptables

import (
	"errors"
	"fmt"
	"math"
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

// maxList is the maximum number of entries of a list option. The longest list in Istio's documentation has a few dozen
// entries.
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

// toleratedError reports an entry that Istio accepts although it is questionable. The parser returns the value that is
// used instead. If omit is set, the entry is ignored.
type toleratedError struct {
	text string
	omit bool
}

func (e *toleratedError) Error() string { return e.text }

// parseList parses each entry of a comma-separated list, and removes duplicates. It calls warn for each tolerated
// entry.
func parseList[T comparable](text string, parse func(string) (T, error), warn func(string)) ([]T, error) {
	parts, err := splitList(text)
	if err != nil {
		return nil, err
	}
	var list []T
	var errs []error
	seen := make(map[T]bool, len(parts))
	for _, part := range parts {
		v, err := parse(part)
		if tolerated, ok := errors.AsType[*toleratedError](err); ok {
			warn(tolerated.text)
			if tolerated.omit {
				continue
			}
			err = nil
		}
		switch {
		case err != nil:
			errs = append(errs, err)
		case !seen[v]:
			list, seen[v] = append(list, v), true
		}
	}
	return list, errors.Join(errs...)
}

var errStar = errors.New(`"*" cannot be combined with other entries: use either "*" or a list`)

// parseChoice parses "*" or a list. For "*" it returns true for all.
func parseChoice[T comparable](text string, parse func(string) (T, error), warn func(string)) (all bool, list []T, err error) {
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
	list, err = parseList(text, parse, warn)
	return false, list, err
}

func parsePort(text string) (uint16, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("%q is not a port: use a number from 1 to 65535", text)
	}
	return uint16(n), nil
}

// parsePortRange parses a port or a range. It accepts both "80-90" and "80:90", because each of Istio's back ends
// accepts only one of the two. As in iptables, one end of a range may be missing ("1024:"). Port 0 is tolerated.
func parsePortRange(text string) (PortRange, error) {
	first, last, isRange := strings.Cut(text, "-")
	open := false
	if !isRange {
		first, last, isRange = strings.Cut(text, ":")
		open = first == "" || last == ""
	}
	from, err := parseRangePort(first, 0)
	if !isRange {
		if err != nil || first == "" {
			return PortRange{}, fmt.Errorf("%q is not a port: use a number from 1 to 65535", text)
		}
		if from == 0 {
			return PortRange{}, &toleratedError{text: "port 0 has no effect: no connection has this port", omit: true}
		}
		return PortRange{from, from}, nil
	}
	to, errTo := parseRangePort(last, math.MaxUint16)
	switch {
	case err != nil || errTo != nil || to == 0 || first+last == "" || !open && (first == "" || last == ""):
		return PortRange{}, fmt.Errorf("%q is not a port range: use two numbers from 1 to 65535, such as 8000-8010", text)
	case to < from:
		return PortRange{}, fmt.Errorf("%q is not a port range: the first port is greater than the last", text)
	}
	return PortRange{max(from, 1), to}, nil
}

// parseRangePort parses one end of a range. If the end is missing, it returns absent.
func parseRangePort(text string, absent uint16) (uint16, error) {
	if text == "" {
		return absent, nil
	}
	n, err := strconv.ParseUint(text, 10, 16)
	return uint16(n), err
}

// parseCIDR parses a CIDR. It masks host bits and converts IPv4-mapped addresses, which Istio tolerates.
func parseCIDR(text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return p, fmt.Errorf("%q is not a CIDR: use an address and a prefix length, such as 10.0.0.0/8 or fd00::/8", text)
	}
	if mapped := p.Addr().BitLen() - 32; p.Addr().Is4In6() && p.Bits() >= mapped {
		v4 := netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-mapped).Masked()
		return v4, &toleratedError{text: fmt.Sprintf("%q is an IPv4-mapped IPv6 address; %s is used", text, v4)}
	}
	if masked := p.Masked(); masked != p {
		return masked, &toleratedError{text: fmt.Sprintf("%q has host bits; the network %s is used", text, masked)}
	}
	return p, nil
}

// parseInterface rejects names that exceed the kernel's maximum length. As in iptables, names with other invalid
// characters are tolerated, although no interface can have them. This includes "+": iptables treats a trailing "+" as a
// wildcard, but nftables does not.
func parseInterface(text string) (string, error) {
	if len(text) > 15 {
		return "", fmt.Errorf("%q is not an interface name: use at most 15 characters", text)
	}
	bad := func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune(`/:"'\+*!`, r) }
	if text == "." || text == ".." || strings.ContainsFunc(text, bad) {
		return "", &toleratedError{omit: true, text: fmt.Sprintf(
			"%q has no effect, because no interface can have this name: use names without spaces, quotes, and / : \\ + * !", text)}
	}
	return text, nil
}

// parseID returns a parser for IDs of users or groups (kind). An ID is a number, or a name that find converts to one.
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
