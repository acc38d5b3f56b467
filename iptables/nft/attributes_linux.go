package nft

import (
	"bytes"
	"encoding/binary"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/iptables/kernel"
)

// Netlink attributes are in the order of bytes of the machine, nftables' numbers in them are big-endian.

func attribute(kind uint16, parts ...[]byte) []byte {
	size := 4
	for _, p := range parts {
		size += len(p)
	}
	out := make([]byte, 4, (size+3)&^3)
	binary.NativeEndian.PutUint16(out, uint16(size))
	binary.NativeEndian.PutUint16(out[2:], kind)
	for _, p := range parts {
		out = append(out, p...)
	}
	for len(out)%4 != 0 {
		out = append(out, 0)
	}
	return out
}

func nested(kind uint16, parts ...[]byte) []byte {
	return attribute(kind|unix.NLA_F_NESTED, parts...)
}

func text(kind uint16, s string) []byte { return attribute(kind, append([]byte(s), 0)) }

func number(kind uint16, n uint32) []byte {
	return attribute(kind, binary.BigEndian.AppendUint32(nil, n))
}

func concat(parts ...[]byte) []byte {
	return bytes.Join(parts, nil)
}

// attributes are the top level of a message or of a nested attribute, read.
type attributes []struct {
	kind uint16
	data []byte
}

// parse reads attributes; what is malformed ends the list.
func parse(b []byte) attributes {
	var out attributes
	for len(b) >= 4 {
		n := int(binary.NativeEndian.Uint16(b))
		if n < 4 || n > len(b) {
			return out
		}
		kind := binary.NativeEndian.Uint16(b[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
		out = append(out, struct {
			kind uint16
			data []byte
		}{kind, b[4:n]})
		b = b[min((n+3)&^3, len(b)):]
	}
	return out
}

// get gives the first attribute of a kind, nil without.
func (a attributes) get(kind uint16) []byte {
	for _, x := range a {
		if x.kind == kind {
			return x.data
		}
	}
	return nil
}

func (a attributes) text(kind uint16) string {
	return strings.TrimRight(string(a.get(kind)), "\x00")
}

func (a attributes) number(kind uint16) (uint32, bool) {
	b := a.get(kind)
	if len(b) != 4 {
		return 0, false
	}
	return binary.BigEndian.Uint32(b), true
}

// bodyOf are the attributes of an nftables message, behind its struct nfgenmsg.
func bodyOf(r kernel.Reply) attributes {
	if len(r.Data) < 4 {
		return nil
	}
	return parse(r.Data[4:])
}
