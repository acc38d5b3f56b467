package nft

import (
	"encoding/binary"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Netlink attributes are in the order of bytes of the machine, nftables' numbers in them are big-endian.

func attribute(kind uint16, data []byte) []byte {
	out := make([]byte, 4, 4+len(data)+3)
	binary.NativeEndian.PutUint16(out, uint16(4+len(data)))
	binary.NativeEndian.PutUint16(out[2:], kind)
	out = append(out, data...)
	for len(out)%4 != 0 {
		out = append(out, 0)
	}
	return out
}

func nested(kind uint16, parts ...[]byte) []byte {
	return attribute(kind|unix.NLA_F_NESTED, concat(parts...))
}

func text(kind uint16, s string) []byte { return attribute(kind, append([]byte(s), 0)) }

func number(kind uint16, n uint32) []byte {
	return attribute(kind, binary.BigEndian.AppendUint32(nil, n))
}

func concat(parts ...[]byte) []byte {
	var out []byte
	for _, p := range parts {
		out = append(out, p...)
	}
	return out
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

// reply is a message of the kernel's.
type reply struct {
	kind, flags uint16
	sequence    uint32
	data        []byte
}

// errno is the error that the message tells, 0 for none.
func (r reply) errno() syscall.Errno {
	if (r.kind != unix.NLMSG_ERROR && r.kind != unix.NLMSG_DONE) || len(r.data) < 4 {
		return 0
	}
	return syscall.Errno(-int32(binary.NativeEndian.Uint32(r.data)))
}

func (r reply) interrupted() bool { return r.flags&unix.NLM_F_DUMP_INTR != 0 }

// attributes are those of an nftables message, behind its struct nfgenmsg.
func (r reply) attributes() attributes {
	if len(r.data) < 4 {
		return nil
	}
	return parse(r.data[4:])
}

// receive reads what one datagram of the kernel's holds.
func (c *conn) receive() ([]reply, error) {
	buf := make([]byte, 64<<10) // no dump's datagram is larger (net/netlink/af_netlink.c: 32 KiB)
	var n int
	var err error
	if waited := c.raw.Read(func(fd uintptr) bool {
		n, _, err = unix.Recvfrom(int(fd), buf, unix.MSG_DONTWAIT)
		return err != unix.EAGAIN && err != unix.EINTR
	}); waited != nil {
		return nil, waited
	}
	if err != nil {
		return nil, err
	}
	return split(buf[:n]), nil
}

// split separates the messages of a datagram.
func split(b []byte) []reply {
	var out []reply
	for len(b) >= unix.NLMSG_HDRLEN {
		n := int(binary.NativeEndian.Uint32(b))
		if n < unix.NLMSG_HDRLEN || n > len(b) {
			return out
		}
		out = append(out, reply{
			kind: binary.NativeEndian.Uint16(b[4:]), flags: binary.NativeEndian.Uint16(b[6:]),
			sequence: binary.NativeEndian.Uint32(b[8:]), data: b[unix.NLMSG_HDRLEN:n],
		})
		b = b[min((n+3)&^3, len(b)):]
	}
	return out
}
