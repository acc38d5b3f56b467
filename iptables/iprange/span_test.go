package iprange

import (
	"fmt"
	"net/netip"
	"testing"
)

func TestPrefixesAreMinimal(t *testing.T) {
	for _, c := range []struct{ list, want string }{
		{"[]", "[]"},
		{"[10.1.0.0/16 10.0.0.0/8]", "[10.0.0.0/8]"},
		{"[10.128.0.0/9 10.0.0.0/9]", "[10.0.0.0/8]"},
		{"[::1/128 127.0.0.0/8]", "[127.0.0.0/8 ::1/128]"},
		{"[0.0.0.0/0 ::/0]", "[0.0.0.0/0 ::/0]"},
		{"[128.0.0.0/1 0.0.0.0/1]", "[0.0.0.0/0]"},
		{"[10.0.0.1/32 10.0.0.2/32 10.0.0.3/32]", "[10.0.0.1/32 10.0.0.2/31]"},
		{"[255.255.255.255/32]", "[255.255.255.255/32]"},
		{"[::/128 ffff::/16]", "[::/128 ffff::/16]"},
		{"[255.255.255.255/32 ::/128]", "[255.255.255.255/32 ::/128]"},
	} {
		if got := fmt.Sprint(Prefixes(parse(t, c.list))); got != c.want {
			t.Errorf("%s: %s, not %s", c.list, got, c.want)
		}
	}
}

func parse(t *testing.T, list string) []netip.Prefix {
	t.Helper()
	var out []netip.Prefix
	var word string
	for _, r := range list + " " {
		switch r {
		case '[', ']', ' ':
			if word != "" {
				p, err := netip.ParsePrefix(word)
				if err != nil {
					t.Fatal(err)
				}
				out = append(out, p)
			}
			word = ""
		default:
			word += string(r)
		}
	}
	return out
}
