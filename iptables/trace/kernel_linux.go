package trace

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/iptables/namespace"
)

// Run traces packets, and calls report for each packet whose trace is complete. It returns when ctx ends, after
// cfg.For, or after cfg.Packets packets. It requires CAP_NET_ADMIN in the namespace.
func Run(ctx context.Context, cfg Config, report func(Packet) error) error {
	if cfg.For <= 0 {
		cfg.For = 10 * time.Second
	}
	if cfg.Packets <= 0 {
		cfg.Packets = 20
	}
	k, err := open(cfg)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, cfg.For)
	defer cancel()
	return errors.Join(k.listen(ctx, cfg.Packets, report), k.close())
}

// kernel receives trace messages from the kernel.
type kernel struct {
	*assembler
	events   *netlink.Conn // trace messages
	selector *selector     // rules that enable tracing
	links    map[uint32]string
}

// open opens all sockets and installs the trace rules. It does so on a thread in the namespace. Other threads can use
// the sockets afterwards.
func open(cfg Config) (k *kernel, err error) {
	k = &kernel{links: map[uint32]string{}}
	err = namespace.Do(cfg.NetNS, func() error {
		names, err := ruleNames()
		if err != nil {
			return fmt.Errorf("listing the installed rules: %w", err)
		}
		k.assembler = newAssembler(cfg.Rules, names, k.link, time.Now)
		links, err := net.Interfaces()
		if err != nil {
			return fmt.Errorf("listing the interfaces: %w", err)
		}
		for _, l := range links {
			k.links[uint32(l.Index)] = l.Name
		}
		if k.events, err = netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{Groups: 1 << (unix.NFNLGRP_NFTRACE - 1)}); err != nil {
			return fmt.Errorf("subscribing to the kernel's trace messages: %w", err)
		}
		_ = k.events.SetReadBuffer(1 << 20) // ignore the error, because the kernel may limit the size
		k.selector, err = newSelector(cfg.Filter)
		return err
	})
	if err != nil {
		return nil, errors.Join(err, k.close())
	}
	return k, nil
}

func (k *kernel) link(index uint32) string {
	if name, ok := k.links[index]; ok {
		return name
	}
	return fmt.Sprintf("interface %d", index)
}

func (k *kernel) close() error {
	var errs []error
	if k.selector != nil {
		errs = append(errs, k.selector.Close())
	}
	if k.events != nil {
		errs = append(errs, k.events.Close())
	}
	return errors.Join(errs...)
}

// ErrLost is returned if trace messages were lost. The packets that were reported before are complete.
var ErrLost = errors.New("trace messages were lost, because the kernel sent them faster than they were read: select fewer packets")

// listen reports packets until it has reported maxPackets or ctx ends.
func (k *kernel) listen(ctx context.Context, maxPackets int, report func(Packet) error) error {
	reported := 0
	reportAll := func(done []Packet) error {
		for _, p := range done {
			if reported == maxPackets {
				return nil
			}
			reported++
			if err := report(p); err != nil {
				return err
			}
		}
		return nil
	}
	for reported < maxPackets && ctx.Err() == nil {
		now := time.Now()
		wait := now.Add(quietPeriod / 2) // a trace can become complete without a further message
		if end, ok := ctx.Deadline(); ok && end.Before(wait) {
			wait = end
		}
		all, err := k.processMessages(wait)
		if err != nil {
			return errors.Join(reportAll(k.removeFinished(now, true)), err)
		}
		if !all {
			continue
		}
		if err := reportAll(k.removeFinished(now, false)); err != nil {
			return err
		}
	}
	err := k.drain()
	return errors.Join(reportAll(k.removeFinished(time.Now(), true)), err)
}

// drainTimeout limits how long queued messages are read at the end of a trace. Without it, this might not end, because
// the kernel may continue to send messages.
const drainTimeout = 2 * time.Second

// pollTimeout is the timeout for reading messages that should already be queued.
const pollTimeout = time.Millisecond

// drain processes all queued messages.
func (k *kernel) drain() error {
	for end := time.Now().Add(drainTimeout); ; {
		if all, err := k.processMessages(time.Now().Add(pollTimeout)); all || err != nil || time.Now().After(end) {
			return err
		}
	}
}

// processMessages waits for trace messages until deadline, and processes them. It then processes queued messages for a
// limited time. It returns true if the queue is empty.
func (k *kernel) processMessages(deadline time.Time) (all bool, err error) {
	for end := deadline.Add(quietPeriod / 2); ; deadline = time.Now().Add(pollTimeout) {
		received, err := receive(k.events, deadline)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return true, nil
		case errors.Is(err, unix.ENOBUFS):
			return false, ErrLost
		case err != nil:
			return false, fmt.Errorf("receiving the kernel's trace messages: %w", err)
		}
		for _, m := range received {
			if m.Header.Type != unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_TRACE {
				continue
			}
			if decoded, err := decode(m.Data); err == nil { // malformed messages are skipped
				k.addMessage(decoded)
			}
		}
		if time.Now().After(end) {
			return false, nil
		}
	}
}

// receive waits for messages until deadline. On a busy machine, deadline may have passed already. receive then reads
// queued messages without a deadline, because the connection returns none if its deadline has passed.
func receive(conn *netlink.Conn, deadline time.Time) ([]netlink.Message, error) {
	if err := conn.SetReadDeadline(deadline); err != nil {
		return nil, err
	}
	received, err := conn.Receive()
	if !errors.Is(err, os.ErrDeadlineExceeded) || !hasMore(conn) {
		return received, err
	}
	if err := conn.SetReadDeadline(time.Time{}); err != nil {
		return nil, err
	}
	return conn.Receive()
}

// hasMore reports whether a message or an error is queued.
func hasMore(conn *netlink.Conn) bool {
	raw, err := conn.SyscallConn()
	if err != nil {
		return false
	}
	n := 0
	err = raw.Control(func(fd uintptr) {
		n, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	})
	return err == nil && n > 0
}
