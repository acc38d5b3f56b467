package nft

import (
	"context"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// ChainsOfIPTables names the chains with one of the prefixes in tables that iptables and ip6tables make, in their flavour
// that nftables carries. It is asked before a program is run to look at them: in most namespaces there are none.
func (b *Backend) ChainsOfIPTables(ctx context.Context, prefixes ...string) ([]string, error) {
	c, err := dial(ctx, b.cfg.NetNS)
	if err != nil {
		return nil, err
	}
	defer c.close()
	replies, err := c.ask(message{kind: unix.NFT_MSG_GETCHAIN, flags: unix.NLM_F_DUMP, family: anyFamily})
	if err != nil {
		return nil, err
	}
	var found []string
	for _, r := range replies {
		if len(r.data) == 0 || (r.data[0] != unix.NFPROTO_IPV4 && r.data[0] != unix.NFPROTO_IPV6) {
			continue
		}
		name := r.attributes().text(unix.NFTA_CHAIN_NAME)
		if slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) }) {
			found = append(found, name)
		}
	}
	return found, nil
}
