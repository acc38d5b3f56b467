package conntrack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/iptables/namespace"
	"github.com/pilotfish-mesh/pilotfish/iptables/nlsocket"
)

// Constants of linux/netfilter/nfnetlink_conntrack.h and nf_conntrack_tcp.h, which x/sys/unix does not define.
const (
	ipctnlGet    = 1
	ipctnlDelete = 2
	ipctnlStats  = 5

	ctaStatsGlobalEntries = 1

	ctaTupleOrig        = 1
	ctaProtoInfo        = 4
	ctaID               = 12
	ctaZone             = 18
	ctaTupleProto       = 2
	ctaProtoNum         = 1
	ctaProtoDstPort     = 3
	ctaProtoInfoTCP     = 1
	ctaProtoInfoTCPStat = 1

	tcpTimeWait = 7
	tcpClose    = 8

	portDNS = 53
)

// deleteAtOnce is the maximum number of deletions in one datagram.
const deleteAtOnce = 256

// DeleteStale deletes the stale entries in the network namespace with the file descriptor netns. A netns of 0 or less
// is the namespace of the calling thread. If the kernel does not have the module nf_conntrack_netlink, DeleteStale does
// nothing.
func DeleteStale(netns int, stale Stale) error {
	if !stale.Any() {
		return nil
	}
	var s *nlsocket.Socket
	err := namespace.Do(netns, func() (err error) {
		s, err = nlsocket.Dial(unix.NETLINK_NETFILTER, time.Time{})
		return err
	})
	if err != nil {
		return fmt.Errorf("opening a netlink socket for conntrack: %w", err)
	}
	// Close the socket in the background, because close may block until no processor uses removed rules.
	defer func() { go func() { _ = s.Close() }() }()
	return DeleteStaleWith(s, stale)
}

// DeleteStaleWith deletes the stale entries in the namespace of a NETLINK_NETFILTER socket.
func DeleteStaleWith(s *nlsocket.Socket, stale Stale) error {
	if !stale.Any() {
		return nil
	}
	some, err := tracksAny(s)
	if err != nil || !some {
		return err
	}
	var flows []nlsocket.Reply
	for range attempts {
		flows, err = s.Request(unix.NFNL_SUBSYS_CTNETLINK<<8|ipctnlGet, unix.NLM_F_DUMP, anyFamily)
		if !errors.Is(err, nlsocket.ErrInterrupted) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("listing conntrack entries: %w", err)
	}
	return remove(s, flows, stale)
}

// attempts is the maximum number of attempts to list the entries. A change of the entries interrupts an attempt.
const attempts = 10

// anyFamily is the header struct nfgenmsg of a request for all address families.
var anyFamily = []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, 0}

// tracksAny reports whether the namespace has conntrack entries. If it has none, a dump is not necessary. The kernel
// stores the entries of all namespaces in one table, so even an empty dump takes 5 ms.
func tracksAny(s *nlsocket.Socket) (bool, error) {
	answer, err := s.Get(unix.NFNL_SUBSYS_CTNETLINK<<8|ipctnlStats, anyFamily)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("counting conntrack entries: %w", err)
	}
	if len(answer.Data) < len(anyFamily) {
		return true, nil
	}
	count := nestedAttribute(answer.Data[len(anyFamily):], ctaStatsGlobalEntries)
	return len(count) != 4 || binary.BigEndian.Uint32(count) > 0, nil
}

// remove deletes the stale entries in batches. It ignores entries that have already expired.
func remove(s *nlsocket.Socket, flows []nlsocket.Reply, stale Stale) error {
	var batch []byte
	n := 0
	for i, f := range flows {
		if data, is := deletion(f.Data, stale); is {
			batch = nlsocket.Append(batch, unix.NFNL_SUBSYS_CTNETLINK<<8|ipctnlDelete, 0, s.NextSequence(), data)
			n++
		}
		if n == deleteAtOnce || (i == len(flows)-1 && n > 0) {
			if err := s.Send(batch); err != nil {
				return fmt.Errorf("deleting %d conntrack entries: %w", n, err)
			}
			batch, n = nil, 0
		}
	}
	return nil
}

// deletion returns the request to delete an entry of a dump. It returns false if the entry is not stale. The request has the
// entry's ID, because a new entry may have the same addresses and ports.
func deletion(flow []byte, stale Stale) (data []byte, is bool) {
	if len(flow) < 4 {
		return nil, false
	}
	attrs, err := netlink.UnmarshalAttributes(flow[4:])
	if err != nil {
		return nil, false
	}
	var keep []netlink.Attribute
	for _, a := range attrs {
		switch a.Type &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER) {
		case ctaTupleOrig:
			is = is || stale.DNS && isDNS(a.Data)
			keep = append(keep, a)
		case ctaProtoInfo:
			is = is || stale.Ended && hasEnded(a.Data)
		case ctaID, ctaZone:
			keep = append(keep, a)
		}
	}
	if !is {
		return nil, false
	}
	body, err := netlink.MarshalAttributes(keep)
	return append([]byte{flow[0], unix.NFNETLINK_V0, 0, 0}, body...), err == nil
}

// nestedAttribute returns the content of the first attribute of this kind in data, or nil if there is none.
func nestedAttribute(data []byte, kind uint16) []byte {
	attrs, err := netlink.UnmarshalAttributes(data)
	if err != nil {
		return nil
	}
	for _, a := range attrs {
		if a.Type&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER) == kind {
			return a.Data
		}
	}
	return nil
}

func isDNS(tuple []byte) bool {
	proto := nestedAttribute(tuple, ctaTupleProto)
	number, port := nestedAttribute(proto, ctaProtoNum), nestedAttribute(proto, ctaProtoDstPort)
	return len(number) == 1 && number[0] == unix.IPPROTO_UDP && len(port) == 2 && binary.BigEndian.Uint16(port) == portDNS
}

func hasEnded(info []byte) bool {
	state := nestedAttribute(nestedAttribute(info, ctaProtoInfoTCP), ctaProtoInfoTCPStat)
	return len(state) == 1 && (state[0] == tcpTimeWait || state[0] == tcpClose)
}
