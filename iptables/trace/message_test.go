package trace

import (
	"encoding/binary"
	"testing"

	"github.com/mdlayher/netlink"
)

// traceMessage returns a message as the kernel sends it.
func traceMessage(t testing.TB, attributes ...netlink.Attribute) []byte {
	t.Helper()
	b, err := netlink.MarshalAttributes(attributes)
	if err != nil {
		t.Fatal(err)
	}
	return append([]byte{1, 0, 0, 0}, b...)
}

func number(kind uint16, n uint32) netlink.Attribute {
	return netlink.Attribute{Type: kind, Data: binary.BigEndian.AppendUint32(nil, n)}
}

func aRule(t testing.TB) []byte {
	verdict, err := netlink.MarshalAttributes([]netlink.Attribute{number(verdictCode, 0xfffffffd), {Type: verdictChain, Data: []byte("ISTIO_OUTPUT\x00")}})
	if err != nil {
		t.Fatal(err)
	}
	network := append([]byte{0x45, 8: 64, 9: 6}, make([]byte, 10)...)
	copy(network[12:], []byte{10, 0, 0, 5, 10, 2, 3, 4})
	return traceMessage(t, netlink.Attribute{Type: attributeTable, Data: []byte("pilotfish\x00")}, netlink.Attribute{Type: attributeChain, Data: []byte("nat_output\x00")},
		netlink.Attribute{Type: attributeHandle, Data: binary.BigEndian.AppendUint64(nil, 42)}, number(attributeKind, kindRule), number(attributeID, 7),
		netlink.Attribute{Type: attributeVerdict, Data: verdict}, netlink.Attribute{Type: attributeNetwork, Data: network},
		netlink.Attribute{Type: attributeTransport, Data: []byte{0x80, 0, 1, 0xbb}}, number(attributeMark, 1337))
}

func TestKernelMessageIsDecoded(t *testing.T) {
	m, err := decode(aRule(t))
	if err != nil {
		t.Fatal(err)
	}
	if m.table != "pilotfish" || m.chain != "nat_output" || m.handle != 42 || m.kind != kindRule || m.verdict != verdictJump ||
		m.to != "ISTIO_OUTPUT" || m.mark != 1337 || m.headers.from.String() != "10.0.0.5:32768" || m.headers.to.String() != "10.2.3.4:443" {
		t.Errorf("%+v", m)
	}
}

func FuzzMessageIsReadOrRefused(f *testing.F) {
	f.Add(aRule(f))
	f.Add([]byte{1, 0, 0, 0, 255, 255, 1, 0})
	f.Add([]byte{1})
	f.Fuzz(func(t *testing.T, data []byte) {
		if m, err := decode(data); err == nil && m.headers.known && !m.headers.to.IsValid() {
			t.Errorf("%+v", m)
		}
	})
}
