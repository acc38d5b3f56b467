package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// The messages are made and read here, and not by google/nftables' Conn: that leaves out expressions that it does not
// know when it reads rules (tproxy and socket among them), so that a damaged rule could pass for a sound one; it cannot
// ask the kernel to refuse a batch when somebody else changed something since it looked; and it tells no errors by rule.
// Expressions are that module's.

// message is one of a batch, or a question.
type message struct {
	kind  uint16 // NFT_MSG_…
	flags netlink.HeaderFlags
	body  []byte // attributes
	what  string // for errors: "rule outbound/x"
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

// patience is how long the kernel may take to answer a question without a deadline of its own.
const patience = 10 * time.Second

// conn is a netlink socket of a namespace, for one goroutine.
type conn struct {
	nl  *netlink.Conn
	raw interface {
		Read(func(fd uintptr) bool) error
	}
	sequence uint32
	removed  bool // something was, by a batch
}

func dial(ctx context.Context, netns int) (*conn, error) {
	nl, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: max(netns, 0)})
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket to netfilter: %w", explain(err))
	}
	raw, err := nl.SyscallConn()
	if err == nil {
		deadline, ok := ctx.Deadline()
		if !ok {
			deadline = time.Now().Add(patience)
		}
		err = nl.SetDeadline(deadline)
	}
	if err != nil {
		_ = nl.Close()
		return nil, fmt.Errorf("ready a netlink socket: %w", err)
	}
	_ = nl.SetReadBuffer(4 << 20) // answers to a large batch; without the privilege the default has to do
	return &conn{nl: nl, raw: raw, sequence: 1}, nil
}

// close ends the connection. After something was taken away the kernel holds the last one that closes its socket until
// no processor can see it any more, which takes 10 ms and more; nobody has to wait for that.
func (c *conn) close() {
	if c.removed {
		go func() { _ = c.nl.Close() }()
		return
	}
	_ = c.nl.Close()
}

// header is struct nfgenmsg.
func header(family uint8, resource uint16) []byte {
	return binary.BigEndian.AppendUint16([]byte{family, unix.NFNETLINK_V0}, resource)
}

func (c *conn) encode(kind uint16, m message, data []byte) netlink.Message {
	c.sequence++
	return netlink.Message{
		Header: netlink.Header{
			Length:   uint32(unix.NLMSG_HDRLEN + len(data)),
			Type:     netlink.HeaderType(kind),
			Flags:    netlink.Request | m.flags,
			Sequence: c.sequence,
		},
		Data: data,
	}
}

// commit sends a batch as one transaction, which the kernel refuses if its rules are no longer of the generation.
func (c *conn) commit(generation uint32, batch []message) error {
	genid := attribute(unix.NFNL_BATCH_GENID, binary.BigEndian.AppendUint32(nil, generation))
	begin := append(header(unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES), genid...)
	out := []netlink.Message{c.encode(unix.NFNL_MSG_BATCH_BEGIN, message{}, begin)}
	names := map[uint32]string{}
	for i, m := range batch {
		if i == len(batch)-1 {
			m.flags |= netlink.Acknowledge // the one that tells that all is done
		}
		out = append(out, c.encode(unix.NFNL_SUBSYS_NFTABLES<<8|m.kind, m, append(m.header(), m.body...)))
		names[c.sequence] = m.what
	}
	last := c.sequence
	out = append(out, c.encode(unix.NFNL_MSG_BATCH_END, message{}, header(unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES)))
	if err := c.send(out); err != nil {
		return fmt.Errorf("send a batch of %d messages: %w", len(batch), err)
	}
	for {
		replies, err := c.receive()
		if err != nil {
			return fmt.Errorf("wait for the kernel's answer to a batch: %w", err)
		}
		for _, r := range replies {
			if errno := r.errno(); errno != 0 {
				if errno == unix.ENOENT { // of an expression or a type of chain; what we name ourselves is there
					return described(names[r.sequence], fmt.Errorf("%w: %w", ErrUnsupported, errno))
				}
				return described(names[r.sequence], explain(errno))
			}
			if r.sequence == last {
				return nil
			}
		}
	}
}

// roomy is what a socket's send buffer holds as the kernel makes it, at the least.
const roomy = 64 << 10

// send sends all messages as one datagram, for which the socket's send buffer has to have room.
func (c *conn) send(messages []netlink.Message) error {
	size := 0
	for _, m := range messages {
		size += unix.NLMSG_HDRLEN + (len(m.Data)+3)&^3
	}
	if size > roomy {
		_ = c.nl.SetWriteBuffer(2 * size) // if it may not, sending says so
	}
	_, err := c.nl.SendMessages(messages)
	if errors.Is(err, unix.EMSGSIZE) {
		err = fmt.Errorf("%w: the rules have %d KiB, more than this process may send at once (sysctl net.core.wmem_max); shorten the lists of the options, or join neighbours to ranges", err, size>>10)
	}
	return err
}

func described(what string, err error) error {
	if what == "" {
		return err
	}
	return fmt.Errorf("%s: %w", what, err)
}

// dump asks for all objects of a kind.
func (c *conn) dump(kind uint16, body []byte) ([]reply, error) {
	return c.ask(message{kind: kind, flags: netlink.Dump, body: body})
}

// ask sends a question and gives the answers to it.
func (c *conn) ask(m message) ([]reply, error) {
	if m.flags&netlink.Dump == 0 {
		m.flags |= netlink.Acknowledge
	}
	out := c.encode(unix.NFNL_SUBSYS_NFTABLES<<8|m.kind, m, append(m.header(), m.body...))
	if _, err := c.nl.SendMessages([]netlink.Message{out}); err != nil {
		return nil, err
	}
	var all []reply
	for {
		replies, err := c.receive()
		if err != nil {
			return nil, err
		}
		for _, r := range replies {
			switch {
			case r.sequence != out.Header.Sequence: // of something that was given up
			case r.interrupted():
				return nil, errInterrupted
			case r.errno() != 0:
				return nil, explain(r.errno())
			case r.kind == unix.NLMSG_DONE, r.kind == unix.NLMSG_ERROR:
				return all, nil
			default:
				all = append(all, r)
			}
		}
	}
}

// errInterrupted is told when somebody changed rules while they were read.
var errInterrupted = errors.New("the rules changed while they were read")

// generation is the number that the kernel gives the present state of all rules of the namespace.
func (c *conn) generation() (uint32, error) {
	replies, err := c.ask(message{kind: unix.NFT_MSG_GETGEN})
	if err != nil {
		return 0, fmt.Errorf("ask for the generation of the rules: %w", err)
	}
	for _, r := range replies {
		if b := r.attributes().get(unix.NFTA_GEN_ID); len(b) == 4 {
			return binary.BigEndian.Uint32(b), nil
		}
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
