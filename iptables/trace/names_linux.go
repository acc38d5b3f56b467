package trace

import (
	"bytes"
	"errors"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// ruleNames returns the comments of all nftables rules of the namespace. The comment of one of our rules is its ID. The
// kernel stores comments of iptables-nft in an expression, and others in the user data of the rule.
func ruleNames() (map[ruleKey]string, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	replies, err := conn.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETRULE, Flags: netlink.Request | netlink.Dump},
		Data:   []byte{unix.NFPROTO_UNSPEC, unix.NFNETLINK_V0, 0, 0},
	})
	if err != nil {
		return nil, err
	}
	names := map[ruleKey]string{}
	for _, r := range replies {
		if at, name, err := parseRuleName(r.Data); err == nil && name != "" {
			names[at] = name
		}
	}
	return names, nil
}

func parseRuleName(data []byte) (at ruleKey, name string, err error) {
	if len(data) < 4 {
		return at, "", errShort
	}
	at.family = data[0]
	d, err := attributes(data[4:])
	if err != nil {
		return at, "", err
	}
	for d.Next() {
		switch d.Type() {
		case unix.NFTA_RULE_TABLE:
			at.table = d.String()
		case unix.NFTA_RULE_CHAIN:
			at.chain = d.String()
		case unix.NFTA_RULE_HANDLE:
			at.handle = d.Uint64()
		case unix.NFTA_RULE_USERDATA:
			name = userDataComment(d.Bytes())
		case unix.NFTA_RULE_EXPRESSIONS:
			if c := xtablesComment(d.Bytes()); c != "" {
				name = c
			}
		}
	}
	return at, name, d.Err()
}

// userDataComment returns the comment in a rule's user data; "" if it has none. User data is a list of type, length and
// value. Type 0 is the comment.
func userDataComment(data []byte) string {
	for len(data) >= 2 && len(data) >= 2+int(data[1]) {
		kind, value := data[0], data[2:2+int(data[1])]
		if kind == 0 {
			return terminated(value)
		}
		data = data[2+len(value):]
	}
	return ""
}

func terminated(b []byte) string {
	text, _, _ := bytes.Cut(b, []byte{0})
	return string(text)
}

// xtablesComment returns the comment in a list of expressions of iptables-nft; "" if it has none.
func xtablesComment(list []byte) string {
	elements, err := netlink.UnmarshalAttributes(list)
	if err != nil {
		return ""
	}
	for _, e := range elements {
		parts, err := values(e.Data)
		if err != nil || terminated(parts[unix.NFTA_EXPR_NAME]) != "match" {
			continue
		}
		match, err := values(parts[unix.NFTA_EXPR_DATA])
		if err == nil && terminated(match[unix.NFTA_MATCH_NAME]) == "comment" {
			return terminated(match[unix.NFTA_MATCH_INFO])
		}
	}
	return ""
}

var errNone = errors.New("no attributes")

func values(data []byte) (map[uint16][]byte, error) {
	if len(data) == 0 {
		return nil, errNone
	}
	list, err := netlink.UnmarshalAttributes(data)
	if err != nil {
		return nil, err
	}
	all := map[uint16][]byte{}
	for _, a := range list {
		all[a.Type] = a.Data
	}
	return all, nil
}
