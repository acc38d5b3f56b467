package portowner

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"strings"
)

// socket is one line of /proc/net/tcp or a similar file.
type socket struct {
	local, remote netip.AddrPort
	state         byte
	uid           uint32
	inode         string
}

const (
	stateListen = 0x0A
	stateClose  = 0x07 // the state of an unconnected UDP socket
)

// parseSockets parses /proc/net/{tcp,tcp6,udp,udp6}. It skips lines in another format.
func parseSockets(r io.Reader) []socket {
	var all []socket
	findSocket(r, func(s socket) bool {
		all = append(all, s)
		return false
	})
	return all
}

// findSocket returns the first socket in r, a file as parseSockets reads it, for which matches returns true.
func findSocket(r io.Reader, matches func(socket) bool) (socket, bool) {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		if s, err := parseSocket(lines.Text()); err == nil && matches(s) {
			return s, true
		}
	}
	return socket{}, false
}

// parseSocket parses one line: "sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode …".
func parseSocket(line string) (socket, error) {
	fields := strings.Fields(line)
	if len(fields) < 10 {
		return socket{}, fmt.Errorf("the line has %d fields instead of 10 or more", len(fields))
	}
	local, err := parseAddrPort(fields[1])
	if err != nil {
		return socket{}, err
	}
	remote, err := parseAddrPort(fields[2])
	if err != nil {
		return socket{}, err
	}
	state, err := strconv.ParseUint(fields[3], 16, 8)
	if err != nil {
		return socket{}, fmt.Errorf("state: %w", err)
	}
	uid, err := strconv.ParseUint(fields[7], 10, 32)
	if err != nil {
		return socket{}, fmt.Errorf("uid: %w", err)
	}
	return socket{local: local, remote: remote, state: byte(state), uid: uint32(uid), inode: fields[9]}, nil
}

func parseAddrPort(text string) (netip.AddrPort, error) {
	host, portText, ok := strings.Cut(text, ":")
	if !ok {
		return netip.AddrPort{}, fmt.Errorf("address %q has no port", text)
	}
	port, err := strconv.ParseUint(portText, 16, 16)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("port: %w", err)
	}
	raw, err := hex.DecodeString(host)
	if err != nil || (len(raw) != 4 && len(raw) != 16) {
		return netip.AddrPort{}, fmt.Errorf("address %q is neither IPv4 nor IPv6 in hexadecimal", host)
	}
	// The kernel prints each 32-bit word of the address as a number in the machine's byte order.
	for i := 0; i < len(raw); i += 4 {
		binary.NativeEndian.PutUint32(raw[i:], binary.BigEndian.Uint32(raw[i:]))
	}
	ip, _ := netip.AddrFromSlice(raw)
	return netip.AddrPortFrom(ip.Unmap(), uint16(port)), nil
}

// blocks reports whether s prevents another socket from binding ip and port.
func (s socket) blocks(ip netip.Addr, port uint16) bool {
	if s.local.Port() != port || (s.state != stateListen && s.state != stateClose) {
		return false
	}
	held := s.local.Addr()
	return held == ip || covers(held, ip) || covers(ip, held)
}

// covers reports whether all is an unspecified address that includes one. The unspecified IPv6 address includes IPv4
// addresses.
func covers(all, one netip.Addr) bool { return all.IsUnspecified() && (all.Is6() || one.Is4()) }
