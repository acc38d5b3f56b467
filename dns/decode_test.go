package dns

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"net/netip"
)

func TestDecodeTable(t *testing.T) {
	want := meshTable()
	for host, e := range want.Hosts {
		e.Ports = nil
		want.Hosts[host] = e
	}
	got, err := DecodeTable(encodeTable(want))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmpopts.EquateEmpty()); diff != "" {
		t.Error(diff)
	}
}

func TestInvalidHostsAndAddressesAreSkipped(t *testing.T) {
	wire := encodeTable(&Table{Hosts: map[string]Entry{
		"good.example":                       {IPs: addresses("10.0.0.1"), AltHosts: []string{"..", "also.example"}},
		strings.Repeat("a", 64) + ".example": {IPs: addresses("10.0.0.2")},
		"":                                   {IPs: addresses("10.0.0.3")},
	}})
	wire = append(wire, "\x0a\x12\x0a\x03odd\x12\x0b\x0a\x09localhost"...)
	got, err := DecodeTable(wire)
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Hosts) != 2 || got.Skipped != 4 || len(got.Hosts["good.example"].AltHosts) != 1 || len(got.Hosts["odd"].IPs) != 0 {
		t.Errorf("%+v", got)
	}
}

func TestInvalidNameTableIsAnError(t *testing.T) {
	whole := encodeTable(&Table{Hosts: map[string]Entry{"good.example": {IPs: addresses("10.0.0.1")}}})
	for n := 1; n < len(whole); n++ {
		if _, err := DecodeTable(whole[:n]); err == nil {
			t.Errorf("%d of %d bytes were taken", n, len(whole))
		}
	}
	if _, err := DecodeTable(make([]byte, maxTableBytes+1)); err == nil || !strings.Contains(err.Error(), "bytes") {
		t.Error(err)
	}
}

func FuzzDecodeTable(f *testing.F) {
	f.Add(encodeTable(meshTable()))
	f.Add([]byte("\x0a\x12\x0a\x03odd\x12\x0b\x0a\x09localhost"))
	f.Add([]byte{0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, wire []byte) {
		table, err := DecodeTable(wire)
		if err != nil {
			return
		}
		x := newIndex(table, workloadDomain{"shop", "svc.cluster.local"}, []string{"shop.svc.cluster.local.", "cluster.local."})
		for host := range table.Hosts {
			name, ok := canonical(host)
			if !ok {
				t.Fatalf("%q is no name", host)
			}
			if _, found := x.find(name); !found && len(newRecord(name, table.Hosts[host]).v4) > 0 && !strings.HasPrefix(name, "*.") {
				t.Fatalf("%q is not found", name)
			}
		}
	})
}
