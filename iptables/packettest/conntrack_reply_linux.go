package packettest

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// replyTracker records whether conntrack recognizes the replies to datagrams that left the namespace.
type replyTracker struct {
	// The sets contain destination ports of replies: known if conntrack recognizes the reply as a reply, and unknown
	// if it does not.
	known, unknown *nftables.Set
}

// install adds rules that record the replies to the ports. The chain must run after connection tracking.
func (a *replyTracker) install(conn *nftables.Conn, chain *nftables.Chain, ports []uint16) error {
	if len(ports) == 0 {
		return nil
	}
	requested := &nftables.Set{Table: chain.Table, Name: "asked", KeyType: nftables.TypeInetService}
	if err := conn.AddSet(requested, elements(ports)); err != nil {
		return err
	}
	for _, of := range []struct {
		set  **nftables.Set
		name string
		is   expr.CmpOp
	}{{&a.known, "known", expr.CmpOpNeq}, {&a.unknown, "unknown", expr.CmpOpEq}} {
		set := &nftables.Set{Table: chain.Table, Name: of.name, Dynamic: true, Size: 65535, KeyType: nftables.TypeInetService}
		if err := conn.AddSet(set, nil); err != nil {
			return err
		}
		*of.set = set
		conn.AddRule(&nftables.Rule{Table: chain.Table, Chain: chain, Exprs: []expr.Any{
			&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1}, matchEqual(linkName(nearLink)),
			&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, matchEqual([]byte{protocolUDP}),
			&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
			&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(expr.CtStateBitESTABLISHED), Xor: make([]byte, 4)},
			&expr.Cmp{Op: of.is, Register: 1, Data: make([]byte, 4)},
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
			&expr.Lookup{SourceRegister: 1, SetName: requested.Name, SetID: requested.ID},
			&expr.Dynset{SrcRegKey: 1, SetName: set.Name, SetID: set.ID, Operation: uint32(unix.NFT_DYNSET_OP_ADD)},
		}})
	}
	return nil
}

// read calls f for each port at which a reply arrived. known reports whether conntrack recognized the reply.
func (a *replyTracker) read(conn *nftables.Conn, f func(port uint16, known bool)) error {
	for _, set := range []*nftables.Set{a.known, a.unknown} {
		if set == nil {
			return nil
		}
		elements, err := conn.GetSetElements(set)
		if err != nil {
			return fmt.Errorf("reading the recorded replies: %w", err)
		}
		for _, e := range elements {
			if len(e.Key) >= 2 {
				f(binary.BigEndian.Uint16(e.Key), set == a.known)
			}
		}
	}
	return nil
}

// repliedPorts returns the source ports of those datagrams to which the far end replies.
func (s *session) repliedPorts() (ports []uint16) {
	for f, a := range s.byPort {
		if f.protocol == protocolUDP && a.packet.Answered {
			ports = append(ports, f.port)
		}
	}
	return ports
}

// replyFromOutside sends the reply of the far end to f, the datagram of attempt a.
func (s *session) replyFromOutside(a *attempt, f frame) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a.replier = f.to
	s.farEnd.send(frame{sender: ownHardware, protocol: protocolUDP, from: f.to, to: f.from, payload: f.payload})
}

// handleReply completes the attempt for which a reply arrived at a port of the namespace.
func (s *session) handleReply(port uint16, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a, ok := s.byPort[flow{protocolUDP, port}]; ok && a.replier.IsValid() {
		a.finish(Arrival{Where: Outside, At: a.replier, NotTracked: !known})
	}
}

// replyFromNamespace sends the token of a datagram back to its sender. The source is the address at which the datagram
// arrived in the namespace. It uses a raw socket, because a process may already listen on that port.
func (s *session) replyFromNamespace(a *attempt, got Arrival) error {
	s.mu.Lock()
	a.arrivedAt = &got
	s.mu.Unlock()
	packet := frame{protocol: protocolUDP, from: got.At, to: got.From, payload: a.token[:]}.encode(make([]byte, 6))[ethernetLength:]
	domain := unix.AF_INET
	if got.At.Addr().Is6() {
		domain = unix.AF_INET6
	}
	by := a.packet.Answerer
	return inNamespace(int(s.ns.Fd()), func() error {
		return runAs(by.UID, by.GID, func() error {
			fd, err := unix.Socket(domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
			if err != nil {
				return err
			}
			defer func() { _ = unix.Close(fd) }()
			return unix.Sendto(fd, packet, 0, sockaddr(netip.AddrPortFrom(got.From.Addr(), 0)))
		})
	})
}

// awaitReply waits for the reply at the socket that sent the datagram, and then completes the attempt.
func (s *session) awaitReply(ctx context.Context, a *attempt) {
	stop := context.AfterFunc(ctx, func() { _ = a.socket.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	var back token
	for {
		n, err := a.socket.Read(back[:])
		if err != nil {
			return
		}
		s.mu.Lock()
		here := a.arrivedAt
		s.mu.Unlock()
		if n == len(back) && back == a.token && here != nil {
			a.finish(*here)
			return
		}
	}
}

// handleTimeout completes an attempt whose packet or reply did not arrive before the timeout.
func (s *session) handleTimeout(a *attempt) {
	s.mu.Lock()
	defer s.mu.Unlock()
	got := Arrival{Where: Nowhere}
	if a.arrivedAt != nil {
		got = *a.arrivedAt
		got.Unanswered = true
	}
	a.finish(got)
}
