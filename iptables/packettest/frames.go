package packettest

import (
	"encoding/binary"
	"net/netip"
)

// TCP flags.
const (
	flagSYN = 1 << 1
	flagRST = 1 << 2
	flagPSH = 1 << 3
	flagACK = 1 << 4
)

// IP protocol numbers.
const (
	protocolTCP = 6
	protocolUDP = 17
)

// Header lengths without options.
const (
	ethernetLength = 14
	ipv4Length     = 20
	ipv6Length     = 40
	tcpLength      = 20
	udpLength      = 8
)

// EtherTypes.
const (
	etherIPv4 = 0x0800
	etherIPv6 = 0x86dd
)

// ownHardware is the source MAC address of the harness's frames (locally administered). Frames for a testedInterface have a
// different fourth byte.
var ownHardware = [6]byte{0x02, 0x70, 0x69, 0x6c, 0x6f, 0x74}

func isOwnHardware(sender [6]byte) bool {
	sender[3] = ownHardware[3]
	return sender == ownHardware
}

// frame is an Ethernet frame with a TCP segment or UDP datagram. It contains only the fields that the harness uses.
type frame struct {
	sender   [6]byte // set only in frames to send
	protocol byte
	from, to netip.AddrPort
	payload  []byte

	// TCP only.
	flags         byte
	sequence, ack uint32
}

// encode returns the bytes of the frame. hardware is the destination MAC address.
func (f frame) encode(hardware []byte) []byte {
	transport := f.transport()
	b := make([]byte, ethernetLength, ethernetLength+ipv6Length+len(transport))
	copy(b, hardware)
	copy(b[6:], f.sender[:])
	if f.to.Addr().Is4() {
		binary.BigEndian.PutUint16(b[12:], etherIPv4)
		b = append(b, f.ipv4(len(transport))...)
	} else {
		binary.BigEndian.PutUint16(b[12:], etherIPv6)
		b = append(b, f.ipv6(len(transport))...)
	}
	return append(b, transport...)
}

func (f frame) ipv4(payload int) []byte {
	h := make([]byte, ipv4Length)
	h[0] = 0x45
	binary.BigEndian.PutUint16(h[2:], uint16(ipv4Length+payload))
	h[6] = 0x40 // do not fragment
	h[8] = 64
	h[9] = f.protocol
	copy(h[12:], f.from.Addr().AsSlice())
	copy(h[16:], f.to.Addr().AsSlice())
	binary.BigEndian.PutUint16(h[10:], ^sum(0, h))
	return h
}

func (f frame) ipv6(payload int) []byte {
	h := make([]byte, ipv6Length)
	h[0] = 0x60
	binary.BigEndian.PutUint16(h[4:], uint16(payload))
	h[6] = f.protocol
	h[7] = 64
	copy(h[8:], f.from.Addr().AsSlice())
	copy(h[24:], f.to.Addr().AsSlice())
	return h
}

func (f frame) transport() []byte {
	var b []byte
	var checksum int
	if f.protocol == protocolTCP {
		b = make([]byte, tcpLength, tcpLength+len(f.payload))
		binary.BigEndian.PutUint32(b[4:], f.sequence)
		binary.BigEndian.PutUint32(b[8:], f.ack)
		b[12] = tcpLength / 4 << 4
		b[13] = f.flags
		binary.BigEndian.PutUint16(b[14:], 65535)
		checksum = 16
	} else {
		b = make([]byte, udpLength, udpLength+len(f.payload))
		binary.BigEndian.PutUint16(b[4:], uint16(udpLength+len(f.payload)))
		checksum = 6
	}
	binary.BigEndian.PutUint16(b[0:], f.from.Port())
	binary.BigEndian.PutUint16(b[2:], f.to.Port())
	b = append(b, f.payload...)
	pseudo := sum(sum(0, f.from.Addr().AsSlice()), f.to.Addr().AsSlice())
	pseudo = sum(pseudo, []byte{0, f.protocol, byte(len(b) >> 8), byte(len(b))})
	value := ^sum(pseudo, b)
	if value == 0 { // in UDP, 0 means that the packet has no checksum
		value = 0xffff
	}
	binary.BigEndian.PutUint16(b[checksum:], value)
	return b
}

// sum adds the bytes to a partial Internet checksum (RFC 1071).
func sum(start uint16, b []byte) uint16 {
	total := uint32(start)
	for i := 0; i+1 < len(b); i += 2 {
		total += uint32(b[i])<<8 | uint32(b[i+1])
	}
	if len(b)%2 == 1 {
		total += uint32(b[len(b)-1]) << 8
	}
	for total>>16 != 0 {
		total = total&0xffff + total>>16
	}
	return uint16(total)
}

// decode parses a frame. It returns false if the frame does not contain TCP or UDP over IP. It does not verify
// checksums, because the kernel leaves their computation to the network device.
func decode(b []byte) (frame, bool) {
	if len(b) < ethernetLength {
		return frame{}, false
	}
	var f frame
	var from, to netip.Addr
	var rest []byte
	switch kind, packet := binary.BigEndian.Uint16(b[12:]), b[ethernetLength:]; {
	case kind == etherIPv4 && len(packet) >= ipv4Length && packet[0]>>4 == 4:
		header, total := int(packet[0]&15)*4, int(binary.BigEndian.Uint16(packet[2:]))
		fragment := binary.BigEndian.Uint16(packet[6:]) & 0x3fff // not 0 if the packet is a fragment
		if fragment != 0 || header < ipv4Length || total < header || total > len(packet) {
			return frame{}, false
		}
		f.protocol, rest = packet[9], packet[header:total]
		from, to = netip.AddrFrom4([4]byte(packet[12:])), netip.AddrFrom4([4]byte(packet[16:]))
	case kind == etherIPv6 && len(packet) >= ipv6Length && packet[0]>>4 == 6:
		total := ipv6Length + int(binary.BigEndian.Uint16(packet[4:]))
		if total > len(packet) {
			return frame{}, false
		}
		f.protocol, rest = packet[6], packet[ipv6Length:total]
		from, to = netip.AddrFrom16([16]byte(packet[8:])), netip.AddrFrom16([16]byte(packet[24:]))
	default:
		return frame{}, false
	}
	return f.decodeTransport(from, to, rest)
}

func (f frame) decodeTransport(from, to netip.Addr, b []byte) (frame, bool) {
	switch {
	case f.protocol == protocolTCP && len(b) >= tcpLength:
		header := int(b[12]>>4) * 4
		if header < tcpLength || header > len(b) {
			return frame{}, false
		}
		f.sequence, f.ack, f.flags = binary.BigEndian.Uint32(b[4:]), binary.BigEndian.Uint32(b[8:]), b[13]
		f.payload = b[header:]
	case f.protocol == protocolUDP && len(b) >= udpLength:
		f.payload = b[udpLength:]
	default:
		return frame{}, false
	}
	f.from = netip.AddrPortFrom(from, binary.BigEndian.Uint16(b[0:]))
	f.to = netip.AddrPortFrom(to, binary.BigEndian.Uint16(b[2:]))
	return f, true
}
