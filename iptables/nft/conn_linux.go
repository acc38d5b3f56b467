package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/iptables/namespace"
	"github.com/pilotfish-mesh/pilotfish/iptables/nlsocket"
)

// This package encodes and decodes netlink messages itself, and uses google/nftables only for expressions. The Conn of
// google/nftables has three defects. When it reads rules, it omits expressions that it does not know (such as tproxy
// and socket), so a damaged rule could seem correct. It cannot make the kernel reject a batch after a concurrent
// change. Its errors do not identify the rule.

// message is a netlink request to nftables.
type message struct {
	kind  uint16 // NFT_MSG_…
	flags uint16
	body  []byte // attributes
	// family is the address family; 0 selects the family of our table, inet.
	family int
}

const anyFamily = -1

func (m message) header() []byte {
	switch m.family {
	case anyFamily:
		return header(unix.NFPROTO_UNSPEC, 0)
	case 0:
		return header(unix.NFPROTO_INET, 0)
	}
	return header(byte(m.family), 0)
}

// conn sends requests to nftables, over the socket of a namespace lock.
type conn struct {
	turn   *namespace.Lock
	socket *nlsocket.Socket
}

func connect(t *namespace.Lock) (*conn, error) {
	s, err := t.Socket(unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("opening a netlink socket for netfilter: %w", explain(err))
	}
	return &conn{turn: t, socket: s}, nil
}

// header returns the encoded struct nfgenmsg.
func header(family uint8, resource uint16) []byte {
	return binary.BigEndian.AppendUint16([]byte{family, unix.NFNETLINK_V0}, resource)
}

// commit sends a batch as one transaction.
func (c *conn) commit(b *batch) error {
	last := uint32(len(b.parts))
	first := c.socket.ReserveSequence(last + 2)
	last += first
	out := b.finish(first)
	if len(out) > minSendBuffer {
		c.socket.SetBuffers(2*len(out), 4<<20)
	}
	err := c.socket.Send(out)
	if errors.Is(err, unix.EMSGSIZE) {
		err = fmt.Errorf("%w: the rules have %d KiB, which exceeds the send buffer of this process (sysctl net.core.wmem_max); shorten the lists of the options, or merge adjacent entries into ranges", err, len(out)>>10)
	}
	if err != nil {
		return fmt.Errorf("sending a batch of %d messages: %w", len(b.parts), err)
	}
	for {
		replies, err := c.socket.Receive()
		if err != nil {
			return fmt.Errorf("waiting for the kernel's reply to a batch: %w", err)
		}
		for _, r := range replies {
			if r.Sequence < first || r.Sequence > last {
				continue
			}
			if errno := r.Errno(); errno != 0 {
				what := "" // "" if the error is about the whole transaction
				if r.Sequence > first {
					about := b.parts[r.Sequence-first-1]
					what = about.what + " " + about.name
				}
				// The missing object is an expression or a chain type, because all other objects to which a batch
				// refers exist.
				if errno == unix.ENOENT {
					return describedKey(what, fmt.Errorf("%w: %w", ErrUnsupported, errno))
				}
				return describedKey(what, explain(errno))
			}
			if r.Sequence == last {
				return nil
			}
		}
	}
}

// minSendBuffer is the minimum default size of a socket's send buffer.
const minSendBuffer = 64 << 10

func describedKey(what string, err error) error {
	if what == "" {
		return err
	}
	return fmt.Errorf("%s: %w", what, err)
}

// dump lists the objects that the request kind (NFT_MSG_GET…) selects.
func (c *conn) dump(kind uint16, body []byte) ([]nlsocket.Reply, error) {
	return c.request(message{kind: kind, flags: unix.NLM_F_DUMP, body: body})
}

// request sends a request and returns all replies.
func (c *conn) request(m message) ([]nlsocket.Reply, error) {
	replies, err := c.socket.Request(unix.NFNL_SUBSYS_NFTABLES<<8|m.kind, m.flags, m.header(), m.body)
	return replies, explainErrno(err)
}

// get sends a request that has one reply.
func (c *conn) get(m message) (attributes, error) {
	reply, err := c.socket.Get(unix.NFNL_SUBSYS_NFTABLES<<8|m.kind, m.header(), m.body)
	return bodyOf(reply), explainErrno(err)
}

// explainErrno adds the remedy to an error of the kernel. It does not add one to ENOENT, because some callers do not
// treat it as an error.
func explainErrno(err error) error {
	if errno, is := err.(syscall.Errno); is && errno != unix.ENOENT {
		return explain(errno)
	}
	return err
}

// errInterrupted is returned if rules changed while they were listed.
var errInterrupted = nlsocket.ErrInterrupted

// generation returns the generation of the namespace's rules. The kernel increments it with each change.
func (c *conn) generation() (uint32, error) {
	answer, err := c.get(message{kind: unix.NFT_MSG_GETGEN})
	if err != nil {
		return 0, fmt.Errorf("querying the generation number of the rules: %w", err)
	}
	if n, is := answer.number(unix.NFTA_GEN_ID); is {
		return n, nil
	}
	return 0, errors.New("querying the generation number of the rules: the kernel's reply contains no generation number")
}

// explain adds the remedy to a kernel error.
func explain(err error) error {
	switch {
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("%w: changing and reading rules needs CAP_NET_ADMIN in the user namespace that owns the network namespace (runAsUser 0 and capabilities.add NET_ADMIN, or the CNI plugin)", err)
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EAFNOSUPPORT), errors.Is(err, unix.EINVAL):
		return fmt.Errorf("%w: %w (module nf_tables with nft_chain_nat, nft_redir, nft_tproxy, nft_ct; or use iptables)", ErrUnsupported, err)
	}
	return err
}
