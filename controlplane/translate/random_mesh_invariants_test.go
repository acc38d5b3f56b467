package translate_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/translate"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// resourceValidator records which resource versions have been validated.
type resourceValidator map[string]bool

// check reports what Envoy would reject of a proxy's resources: violations of validation rules, listeners with the same
// address, filter chains with the same match, and virtual hosts with the same name or domain.
func (s resourceValidator) check(t failureReporter, what string, snap *snapshot.Snapshot, p *translate.Proxy) {
	t.Helper()
	addresses, domains := map[string]string{}, map[string]string{}
	for _, typeURL := range xds.Order {
		if typeURL == xds.NameTableType {
			continue
		}
		resources, err := generate(snap, p, typeURL, nil)
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
		for _, r := range resources {
			if s[r.Version] && typeURL != xds.ListenerType && typeURL != xds.VirtualHostType {
				continue
			}
			message, err := r.Body.UnmarshalNew()
			if err == nil && !s[r.Version] {
				err = allowed(message)
			}
			switch m := message.(type) {
			case *listenerv3.Listener:
				claimAll(addresses, m.GetName(), addressesOf(m), &err)
				if !s[r.Version] {
					checkChainMatches(m, &err)
				}
			case *routev3.RouteConfiguration:
				inIt := map[string]string{}
				for i, host := range m.GetVirtualHosts() {
					claimAll(inIt, fmt.Sprint(i, " ", host.GetName()), append(domainsOf(host), "the name "+host.GetName()), &err)
				}
			case *routev3.VirtualHost:
				route, _, _ := strings.Cut(r.Name, "/")
				var of []string
				for _, domain := range domainsOf(m) {
					of = append(of, route+" "+domain)
				}
				claimAll(domains, r.Name, of, &err)
			}
			s[r.Version] = true
			if err != nil {
				t.Errorf("%s: %s %s: %v", what, xds.ShortType(typeURL), r.Name, err)
			}
		}
	}
}

// claimAll records one as the owner of the wanted names. It sets err if another owner has one of them.
func claimAll(places map[string]string, one string, wanted []string, err *error) {
	for _, place := range wanted {
		if other, twice := places[place]; twice {
			*err = fmt.Errorf("%s also has %s", other, place)
		}
		places[place] = one
	}
}

func domainsOf(host *routev3.VirtualHost) (domains []string) {
	for _, domain := range host.GetDomains() {
		domains = append(domains, strings.ToLower(domain))
	}
	return domains
}

// addressesOf returns the addresses to which a listener binds.
func addressesOf(l *listenerv3.Listener) (addresses []string) {
	all := []*corev3.Address{l.GetAddress()}
	for _, more := range l.GetAdditionalAddresses() {
		all = append(all, more.GetAddress())
	}
	for _, a := range all {
		socket := a.GetSocketAddress()
		addresses = append(addresses, fmt.Sprintf("%s %s:%d", socket.GetProtocol(), socket.GetAddress(), socket.GetPortValue()))
	}
	return addresses
}

// checkChainMatches sets err if a connection could match two filter chains equally well. Envoy compares one value per
// criterion, so a chain with several values is checked for each of them.
func checkChainMatches(l *listenerv3.Listener, err *error) {
	if len(l.GetFilterChains()) == 0 && l.GetDefaultFilterChain() == nil && l.GetAddress().GetSocketAddress().GetProtocol() == corev3.SocketAddress_TCP {
		*err = errors.New("the listener has no filter chain")
	}
	matches := map[string]string{}
	for i, chain := range l.GetFilterChains() {
		m := chain.GetFilterChainMatch()
		cases := []string{fmt.Sprint(m.GetDestinationPort().GetValue(), m.GetSourceType(), m.GetTransportProtocol())}
		for _, values := range [][]string{blocks(m.GetPrefixRanges()), m.GetServerNames(), m.GetApplicationProtocols(),
			blocks(m.GetDirectSourcePrefixRanges()), blocks(m.GetSourcePrefixRanges()), numbers(m.GetSourcePorts())} {
			cases = times(cases, values)
		}
		slices.Sort(cases)
		claimAll(matches, fmt.Sprint(i, " ", chain.GetName()), slices.Compact(cases), err)
	}
}

// times returns the product of cases and values, or the cases if there are no values.
func times(cases, values []string) (out []string) {
	if len(values) == 0 {
		values = []string{""}
	}
	for _, c := range cases {
		for _, v := range values {
			out = append(out, c+"|"+v)
		}
	}
	return out
}

func blocks(ranges []*corev3.CidrRange) (out []string) {
	for _, r := range ranges {
		address, err := netip.ParseAddr(r.GetAddressPrefix())
		if err != nil {
			panic(err)
		}
		out = append(out, netip.PrefixFrom(address, int(r.GetPrefixLen().GetValue())).Masked().String())
	}
	return out
}

func numbers(list []uint32) (out []string) {
	for _, n := range list {
		out = append(out, fmt.Sprint(n))
	}
	return out
}
