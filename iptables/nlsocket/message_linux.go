package nlsocket

import (
	"encoding/binary"
	"syscall"

	"golang.org/x/sys/unix"
)

// Append appends a netlink message to a datagram: its header, the parts, and padding.
func Append(to []byte, kind, flags uint16, sequence uint32, parts ...[]byte) []byte {
	size := unix.NLMSG_HDRLEN
	for _, p := range parts {
		size += len(p)
	}
	to = binary.NativeEndian.AppendUint32(to, uint32(size))
	to = binary.NativeEndian.AppendUint16(to, kind)
	to = binary.NativeEndian.AppendUint16(to, flags|unix.NLM_F_REQUEST)
	to = binary.NativeEndian.AppendUint32(to, sequence)
	to = append(to, 0, 0, 0, 0) // port ID 0: the kernel identifies the sender by its socket
	for _, p := range parts {
		to = append(to, p...)
	}
	for len(to)%4 != 0 {
		to = append(to, 0)
	}
	return to
}

// Reply is a netlink message from the kernel.
type Reply struct {
	Kind, Flags uint16
	Sequence    uint32
	Data        []byte
}

// Errno returns the error in the message, or 0 if there is none.
func (r Reply) Errno() syscall.Errno {
	if (r.Kind != unix.NLMSG_ERROR && r.Kind != unix.NLMSG_DONE) || len(r.Data) < 4 {
		return 0
	}
	return syscall.Errno(-int32(binary.NativeEndian.Uint32(r.Data)))
}

func (r Reply) interrupted() bool { return r.Flags&unix.NLM_F_DUMP_INTR != 0 }

// split returns the messages of a datagram.
func split(b []byte) []Reply {
	var out []Reply
	for len(b) >= unix.NLMSG_HDRLEN {
		n := int(binary.NativeEndian.Uint32(b))
		if n < unix.NLMSG_HDRLEN || n > len(b) {
			return out
		}
		out = append(out, Reply{
			Kind: binary.NativeEndian.Uint16(b[4:]), Flags: binary.NativeEndian.Uint16(b[6:]),
			Sequence: binary.NativeEndian.Uint32(b[8:]), Data: b[unix.NLMSG_HDRLEN:n],
		})
		b = b[min((n+3)&^3, len(b)):]
	}
	return out
}
