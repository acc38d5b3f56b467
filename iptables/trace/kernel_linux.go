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

// Run traces until ctx ends, the time is over or as many packets were told as there may be. Each packet is told when its
// way is over. It needs CAP_NET_ADMIN in the namespace.
func Run(ctx context.Context, cfg Config, tell func(Packet) error) error {
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
	return errors.Join(k.listen(ctx, cfg.Packets, tell), k.close())
}

// kernel is the conversation with it.
type kernel struct {
	*gatherer
	events   *netlink.Conn // its trace messages
	selector *selector     // the rules that choose packets
	logger   *logger       // nil where iptables-legacy has no rules
	links    map[uint32]string
}

// open makes all sockets in the namespace, where they stay.
func open(cfg Config) (k *kernel, err error) {
	k = &kernel{links: map[uint32]string{}}
	err = namespace.Do(cfg.NetNS, func() error {
		names, err := ruleNames()
		if err != nil {
			return fmt.Errorf("list the rules in force: %w", err)
		}
		k.gatherer = newGatherer(cfg.Rules, names, k.link, time.Now)
		k.legacy = legacyNames(cfg.Legacy)
		links, err := net.Interfaces()
		if err != nil {
			return fmt.Errorf("list the interfaces: %w", err)
		}
		for _, l := range links {
			k.links[uint32(l.Index)] = l.Name
		}
		if k.events, err = netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{Groups: 1 << (unix.NFNLGRP_NFTRACE - 1)}); err != nil {
			return fmt.Errorf("listen to the kernel's trace: %w", err)
		}
		_ = k.events.SetReadBuffer(1 << 20) // as much as it gives
		if len(cfg.Legacy) > 0 {
			if k.logger, err = newLogger(cfg.Guard); err != nil {
				return err
			}
		}
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
	if k.logger != nil {
		errs = append(errs, k.logger.Close())
	}
	if k.events != nil {
		errs = append(errs, k.events.Close())
	}
	return errors.Join(errs...)
}

// ErrLost is returned when the kernel said more than could be listened to. What was told is true.
var ErrLost = errors.New("the kernel traced more packets than could be kept up with: choose fewer")

// listen tells packets until it is enough.
func (k *kernel) listen(ctx context.Context, most int, tell func(Packet) error) error {
	told := 0
	report := func(done []Packet) error {
		for _, p := range done {
			if told == most {
				return nil
			}
			told++
			if err := tell(p); err != nil {
				return err
			}
		}
		return nil
	}
	for told < most {
		if err := ctx.Err(); err != nil {
			return report(k.over(true))
		}
		if err := errors.Join(k.hearSome(ctx), k.hearLogged(ctx)); err != nil {
			return errors.Join(report(k.over(true)), err)
		}
		if err := report(k.over(false)); err != nil {
			return err
		}
	}
	return nil
}

// hearSome waits for messages, but not long: somebody may be done.
func (k *kernel) hearSome(ctx context.Context) error {
	wait := time.Now().Add(quiet / 2)
	if end, ok := ctx.Deadline(); ok && end.Before(wait) {
		wait = end
	}
	err := receive(k.events, wait, "the kernel's trace", unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_TRACE, func(data []byte) {
		if heard, err := decode(data); err == nil { // a kernel that says it otherwise says it of all packets
			k.hear(heard)
		}
	})
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	return err
}

// receive waits for messages until a time, and gives those of a type; os.ErrDeadlineExceeded is that none came. What names
// their source in errors.
func receive(conn *netlink.Conn, until time.Time, what string, kind netlink.HeaderType, to func(data []byte)) error {
	if err := conn.SetReadDeadline(until); err != nil {
		return err
	}
	received, err := conn.Receive()
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return os.ErrDeadlineExceeded
	case errors.Is(err, unix.ENOBUFS):
		return ErrLost
	case err != nil:
		return fmt.Errorf("listen to %s: %w", what, err)
	}
	for _, m := range received {
		if m.Header.Type == kind {
			to(m.Data)
		}
	}
	return nil
}

// hearLogged takes what was logged so far.
func (k *kernel) hearLogged(ctx context.Context) error {
	if k.logger == nil {
		return nil
	}
	err := k.logger.hear(ctx, k.hearLog)
	k.joinWaiting()
	return err
}
