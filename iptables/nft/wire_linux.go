package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/iptables/kernel"
	"github.com/pilotfish-mesh/pilotfish/iptables/namespace"
)

// The messages are made and read here, and not by google/nftables' Conn: that leaves out expressions that it does not
// know when it reads rules (tproxy and socket among them), so that a damaged rule could pass for a sound one; it cannot
// ask the kernel to refuse a batch when somebody else changed something since it looked; and it tells no errors by rule.
// Expressions are that module's.

// message is a question.
type message struct {
	kind  uint16 // NFT_MSG_…
	flags uint16
	body  []byte // attributes
	// family is that of our table if it is 0.
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

// conn asks in a turn at a namespace.
type conn struct {
	turn   *namespace.Turn
	socket *kernel.Socket
}

func connect(t *namespace.Turn) (*conn, error) {
	s, err := t.Socket(unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket to netfilter: %w", explain(err))
	}
	return &conn{turn: t, socket: s}, nil
}

// header is struct nfgenmsg.
func header(family uint8, resource uint16) []byte {
	return binary.BigEndian.AppendUint16([]byte{family, unix.NFNETLINK_V0}, resource)
}

// commit sends a batch as one transaction.
func (c *conn) commit(b *batch) error {
	last := uint32(len(b.parts))
	first := c.socket.Numbers(last + 2)
	last += first
	out := b.finish(first)
	if len(out) > roomy {
		c.socket.Room(2*len(out), 4<<20)
	}
	err := c.socket.Send(out)
	if errors.Is(err, unix.EMSGSIZE) {
		err = fmt.Errorf("%w: the rules have %d KiB, more than this process may send at once (sysctl net.core.wmem_max); shorten the lists of the options, or join neighbours to ranges", err, len(out)>>10)
	}
	if err != nil {
		return fmt.Errorf("send a batch of %d messages: %w", len(b.parts), err)
	}
	for {
		replies, err := c.socket.Receive()
		if err != nil {
			return fmt.Errorf("wait for the kernel's answer to a batch: %w", err)
		}
		for _, r := range replies {
			if r.Sequence < first || r.Sequence > last {
				continue
			}
			if errno := r.Errno(); errno != 0 {
				what := "" // of the transaction as a whole
				if r.Sequence > first {
					about := b.parts[r.Sequence-first-1]
					what = about.what + " " + about.name
				}
				if errno == unix.ENOENT { // of an expression or a type of chain; what we name ourselves is there
					return described(what, fmt.Errorf("%w: %w", ErrUnsupported, errno))
				}
				return described(what, explain(errno))
			}
			if r.Sequence == last {
				return nil
			}
		}
	}
}

// roomy is what a socket's send buffer holds as the kernel makes it, at the least.
const roomy = 64 << 10

func described(what string, err error) error {
	if what == "" {
		return err
	}
	return fmt.Errorf("%s: %w", what, err)
}

// dump asks for all objects of a kind.
func (c *conn) dump(kind uint16, body []byte) ([]kernel.Reply, error) {
	return c.ask(message{kind: kind, flags: unix.NLM_F_DUMP, body: body})
}

// ask sends a question and gives the answers to it.
func (c *conn) ask(m message) ([]kernel.Reply, error) {
	replies, err := c.socket.Ask(unix.NFNL_SUBSYS_NFTABLES<<8|m.kind, m.flags, m.header(), m.body)
	return replies, told(err)
}

// get asks a question that has one answer.
func (c *conn) get(m message) (attributes, error) {
	reply, err := c.socket.Get(unix.NFNL_SUBSYS_NFTABLES<<8|m.kind, m.header(), m.body)
	return bodyOf(reply), told(err)
}

// told explains what the kernel told, and not what is no error to some.
func told(err error) error {
	if errno, is := err.(syscall.Errno); is && errno != unix.ENOENT {
		return explain(errno)
	}
	return err
}

// errInterrupted is told when somebody changed rules while they were read.
var errInterrupted = kernel.ErrInterrupted

// generation is the number that the kernel gives the present state of all rules of the namespace.
func (c *conn) generation() (uint32, error) {
	answer, err := c.get(message{kind: unix.NFT_MSG_GETGEN})
	if err != nil {
		return 0, fmt.Errorf("ask for the generation of the rules: %w", err)
	}
	if n, is := answer.number(unix.NFTA_GEN_ID); is {
		return n, nil
	}
	return 0, errors.New("ask for the generation of the rules: the kernel told none")
}

// explain adds what can be done about an error of the kernel's.
func explain(err error) error {
	switch {
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("%w: changing and reading rules needs CAP_NET_ADMIN in the user namespace that owns the network namespace (runAsUser 0 and capabilities.add NET_ADMIN, or the CNI plugin)", err)
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EAFNOSUPPORT), errors.Is(err, unix.EINVAL):
		return fmt.Errorf("%w: %w (module nf_tables with nft_chain_nat, nft_redir, nft_tproxy, nft_ct; or use iptables)", ErrUnsupported, err)
	}
	return err
}
