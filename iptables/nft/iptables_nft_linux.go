package nft

import (
	"context"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/iptables/nlsocket"
)

// ChainsOfIPTables returns the chains with one of the prefixes in the tables of iptables-nft and ip6tables-nft. It
// reads them over netlink instead of running these programs, because most namespaces have no such chains.
func (b *Backend) ChainsOfIPTables(ctx context.Context, prefixes ...string) ([]string, error) {
	var replies []nlsocket.Reply
	err := b.withLock(ctx, func(_ *Backend, c *conn) (err error) {
		replies, err = c.request(message{kind: unix.NFT_MSG_GETCHAIN, flags: unix.NLM_F_DUMP, family: anyFamily})
		return err
	})
	if err != nil {
		return nil, err
	}
	var found []string
	for _, r := range replies {
		if len(r.Data) == 0 || (r.Data[0] != unix.NFPROTO_IPV4 && r.Data[0] != unix.NFPROTO_IPV6) {
			continue
		}
		name := bodyOf(r).text(unix.NFTA_CHAIN_NAME)
		if slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) }) {
			found = append(found, name)
		}
	}
	return found, nil
}
