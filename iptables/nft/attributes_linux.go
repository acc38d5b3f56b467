package nft

import (
	"encoding/binary"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/iptables/nlsocket"
)

// The headers of netlink attributes use the machine's byte order. Numbers in attributes of nftables are big-endian.

// writer encodes netlink attributes. The caller opens and closes a nested attribute, because its size is known only
// when its content is complete.
type writer struct {
	out     []byte
	failure error // first error of the nftables library
}

// grow appends n bytes and returns them. The caller must set all of them, because they may contain old data.
func (w *writer) grow(n int) []byte {
	at := len(w.out)
	if at+n > cap(w.out) {
		w.out = slices.Grow(w.out, n)
	}
	w.out = w.out[:at+n]
	return w.out[at:]
}

// attribute appends an attribute with n bytes of data and returns these bytes. The caller must set all of them.
func (w *writer) attribute(kind uint16, n int) []byte {
	b := w.grow(unix.NLA_HDRLEN + (n+3)&^3)
	binary.NativeEndian.PutUint16(b, uint16(unix.NLA_HDRLEN+n))
	binary.NativeEndian.PutUint16(b[2:], kind)
	return b[unix.NLA_HDRLEN:]
}

func (w *writer) open(kind uint16) (at int) {
	at = len(w.out)
	w.attribute(kind, 0)
	return at
}

func (w *writer) nest(kind uint16) (at int) { return w.open(kind | unix.NLA_F_NESTED) }

func (w *writer) close(at int) {
	binary.NativeEndian.PutUint16(w.out[at:], uint16(len(w.out)-at))
	for len(w.out)%4 != 0 {
		w.out = append(w.out, 0)
	}
}

func (w *writer) bytes(kind uint16, data []byte) {
	b := w.attribute(kind, len(data))
	clear(b[copy(b, data):])
}

func (w *writer) text(kind uint16, s string) {
	b := w.attribute(kind, len(s)+1)
	clear(b[copy(b, s):])
}

func (w *writer) number(kind uint16, n uint32) {
	binary.BigEndian.PutUint32(w.attribute(kind, 4), n)
}

func text(kind uint16, s string) []byte {
	w := writer{out: make([]byte, 0, 32)}
	w.text(kind, s)
	return w.out
}

// attributes is a decoded list of attributes. Nested attributes in it are not decoded.
type attributes []struct {
	kind uint16
	data []byte
}

// parse decodes a list of attributes. It stops at the first malformed one.
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

// get returns the first attribute of this kind, or nil if there is none.
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

// bodyOf returns the attributes of an nftables message, which follow its struct nfgenmsg.
func bodyOf(r nlsocket.Reply) attributes {
	if len(r.Data) < 4 {
		return nil
	}
	return parse(r.Data[4:])
}
