package nft

import (
	"net/netip"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testns"
	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// The output of a dry run, installed with nft, yields the same rules as Apply.
func TestTextInstallsTheSameRulesAsApply(t *testing.T) {
	program, err := exec.LookPath("nft")
	if err != nil {
		t.Skip("nft is not installed")
	}
	for name, choose := range choices() {
		t.Run(name, func(t *testing.T) {
			o := iptables.DefaultOptions()
			choose(&o)
			rules, err := iptables.Compile(o)
			if err != nil {
				t.Fatal(err)
			}
			text, err := Text(rules)
			if err != nil {
				t.Fatal(err)
			}
			byText, applied := testns.New(t), testns.New(t)
			nft(t, byText, program, text, "-f", "-")
			b, err := New(Config{NetNS: int(applied.Handle)})
			if err == nil {
				err = b.Apply(t.Context(), rules)
			}
			if err != nil {
				t.Fatal(err)
			}
			got, want := listed(t, byText, program), listed(t, applied, program)
			if len(got) < len(rules.Chains) || !slices.Equal(got, want) {
				t.Errorf("the text installs\n%s\nApply installs\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		})
	}
}

func nft(t *testing.T, ns *testns.Namespace, program, input string, args ...string) string {
	t.Helper()
	var out []byte
	err := ns.Run(func() (err error) {
		cmd := exec.Command(program, args...)
		cmd.Stdin = strings.NewReader(input)
		out, err = cmd.CombinedOutput()
		return err
	})
	if err != nil {
		t.Fatalf("nft: %v\n%s\n%s", err, out, input)
	}
	return string(out)
}

// single matches a set with one value. nft prints the rules that it created itself with the value instead.
var single = regexp.MustCompile(`\{ ([^ ,]+) \}`)

// network matches a network in the form "first-last address", in which nft lists the networks of Apply.
var network = regexp.MustCompile(`[0-9a-f.:]*[.:][0-9a-f.:]*-[0-9a-f.:]*[.:][0-9a-f.:]*`)

func asPrefix(text string) string {
	first, last, _ := strings.Cut(text, "-")
	a, err := netip.ParseAddr(first)
	if err != nil {
		return text
	}
	for bits := range a.BitLen() {
		p := netip.PrefixFrom(a, bits)
		if after := netip.PrefixFrom(netip.MustParseAddr(last), bits); p.Masked().Addr() == a && after.Masked() == p && !p.Contains(after.Addr().Next()) {
			return p.String()
		}
	}
	return text
}

// listed returns the chains of our table as nft lists them, sorted.
func listed(t *testing.T, ns *testns.Namespace, program string) []string {
	text := nft(t, ns, program, "", "--stateless", "list", "table", "inet", Table)
	text = network.ReplaceAllStringFunc(text, asPrefix)
	text = strings.NewReplacer("tproxy ip to", "tproxy to", "tproxy ip6 to", "tproxy to").Replace(text) // other conditions already determine the family
	chains := strings.Split(single.ReplaceAllString(text, "$1"), "\tchain ")[1:]
	for i := range chains {
		chains[i] = strings.TrimRight(chains[i], "}\n\t")
	}
	slices.Sort(chains)
	return chains
}
