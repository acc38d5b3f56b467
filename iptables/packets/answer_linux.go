package packets

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

// answers tells of what comes back to datagrams that left whether connection tracking knows it for an answer.
type answers struct {
	known, unknown *nftables.Set // of ports that were answered
}

// install adds the rules to a chain that packets come to after connection tracking.
func (a *answers) install(conn *nftables.Conn, chain *nftables.Chain, ports []uint16) error {
	if len(ports) == 0 {
		return nil
	}
	asked := &nftables.Set{Table: chain.Table, Name: "asked", KeyType: nftables.TypeInetService}
	if err := conn.AddSet(asked, elements(ports)); err != nil {
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
			&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1}, equal(linkName(nearLink)),
			&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, equal([]byte{protocolUDP}),
			&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
			&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(expr.CtStateBitESTABLISHED), Xor: make([]byte, 4)},
			&expr.Cmp{Op: of.is, Register: 1, Data: make([]byte, 4)},
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
			&expr.Lookup{SourceRegister: 1, SetName: asked.Name, SetID: asked.ID},
			&expr.Dynset{SrcRegKey: 1, SetName: set.Name, SetID: set.ID, Operation: uint32(unix.NFT_DYNSET_OP_ADD)},
		}})
	}
	return nil
}

// read calls f for each port that was answered.
func (a *answers) read(conn *nftables.Conn, f func(port uint16, known bool)) error {
	for _, set := range []*nftables.Set{a.known, a.unknown} {
		if set == nil {
			return nil
		}
		elements, err := conn.GetSetElements(set)
		if err != nil {
			return fmt.Errorf("read what was answered: %w", err)
		}
		for _, e := range elements {
			if len(e.Key) >= 2 {
				f(binary.BigEndian.Uint16(e.Key), set == a.known)
			}
		}
	}
	return nil
}

// answered are the ports of datagrams that the outside answers.
func (s *session) answered() (ports []uint16) {
	for f, a := range s.byPort {
		if f.protocol == protocolUDP && a.packet.Answered {
			ports = append(ports, f.port)
		}
	}
	return ports
}

// answer has the outside answer a datagram that arrived there.
func (s *session) answer(a *attempt, f frame) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a.asked = f.to
	s.wire.send(frame{sender: ownHardware, protocol: protocolUDP, from: f.to, to: f.from, payload: f.payload})
}

// back is told of what came back.
func (s *session) back(port uint16, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a, ok := s.byPort[flow{protocolUDP, port}]; ok && a.asked.IsValid() {
		a.end(Arrival{Where: Outside, At: a.asked, Stranger: !known})
	}
}

// reply answers a datagram from where it arrived in the namespace, with its own token. The port there may be a process's, so that
// no socket can have it but one that writes whole packets.
func (s *session) reply(a *attempt, got Arrival) error {
	s.mu.Lock()
	a.here = &got
	s.mu.Unlock()
	packet := frame{protocol: protocolUDP, from: got.At, to: got.From, payload: a.token[:]}.encode(make([]byte, 6))[ethernetLength:]
	domain := unix.AF_INET
	if got.At.Addr().Is6() {
		domain = unix.AF_INET6
	}
	by := a.packet.Answerer
	return inside(int(s.ns.Fd()), func() error {
		return as(by.UID, by.GID, func() error {
			fd, err := unix.Socket(domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
			if err != nil {
				return err
			}
			defer func() { _ = unix.Close(fd) }()
			return unix.Sendto(fd, packet, 0, sockaddr(netip.AddrPortFrom(got.From.Addr(), 0)))
		})
	})
}

// await reads what comes back to who sent a datagram.
func (s *session) await(ctx context.Context, a *attempt) {
	stop := context.AfterFunc(ctx, func() { _ = a.socket.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	var back token
	for {
		n, err := a.socket.Read(back[:])
		if err != nil {
			return
		}
		s.mu.Lock()
		here := a.here
		s.mu.Unlock()
		if n == len(back) && back == a.token && here != nil {
			a.end(*here)
			return
		}
	}
}

// late ends what nothing more is known of in time.
func (s *session) late(a *attempt) {
	s.mu.Lock()
	defer s.mu.Unlock()
	got := Arrival{Where: Nowhere}
	if a.here != nil {
		got = *a.here
		got.Unanswered = true
	}
	a.end(got)
}
