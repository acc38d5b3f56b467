package packettest

import (
	"net/netip"
	"reflect"
	"testing"
)

var someFrames = []frame{
	{protocol: protocolTCP, from: netip.MustParseAddrPort("10.0.0.1:1024"), to: netip.MustParseAddrPort("10.0.0.2:443"), flags: flagSYN, sequence: 7, payload: []byte{}},
	{protocol: protocolTCP, from: netip.MustParseAddrPort("[fd00::1]:1024"), to: netip.MustParseAddrPort("[fd00::2]:443"), flags: flagACK | flagPSH, sequence: 8, ack: 9, payload: []byte("odd")},
	{protocol: protocolUDP, from: netip.MustParseAddrPort("10.0.0.1:1024"), to: netip.MustParseAddrPort("10.0.0.2:53"), payload: []byte("even")},
	{protocol: protocolUDP, from: netip.MustParseAddrPort("[fd00::1]:1024"), to: netip.MustParseAddrPort("[fd00::2]:53"), payload: []byte("token")},
}

func TestFrameRoundTrip(t *testing.T) {
	for _, want := range someFrames {
		got, ok := decode(want.encode(make([]byte, 6)))
		if !ok || !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, %v, want %+v", got, ok, want)
		}
	}
}

func TestChecksumsAreCorrect(t *testing.T) {
	for _, f := range someFrames {
		transport := f.transport()
		pseudo := sum(sum(0, f.from.Addr().AsSlice()), f.to.Addr().AsSlice())
		pseudo = sum(pseudo, []byte{0, f.protocol, 0, byte(len(transport))})
		if got := sum(pseudo, transport); got != 0xffff {
			t.Errorf("%v sums up to %x", f, got)
		}
	}
}

func FuzzFrameIsReadOrRefused(f *testing.F) {
	for _, seed := range someFrames {
		f.Add(seed.encode(make([]byte, 6)))
	}
	f.Add([]byte("short"))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, ok := decode(b)
		if !ok {
			return
		}
		if !got.from.IsValid() || !got.to.IsValid() || len(got.payload) > len(b) {
			t.Errorf("%+v", got)
		}
	})
}
