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
	for told < most && ctx.Err() == nil {
		now := time.Now()
		wait := now.Add(quiet / 2) // not long: somebody may be done
		if end, ok := ctx.Deadline(); ok && end.Before(wait) {
			wait = end
		}
		all, err := k.hearSome(wait)
		if err != nil {
			return errors.Join(report(k.over(now, true)), err)
		}
		if !all {
			continue
		}
		if err := report(k.over(now, false)); err != nil {
			return err
		}
	}
	err := k.hearRest()
	return errors.Join(report(k.over(time.Now(), true)), err)
}

// lastWords bounds how long is heard what the kernel has said of packets by the end; it may go on saying more.
const lastWords = 2 * time.Second

// atOnce is how long something is waited for that should be there.
const atOnce = time.Millisecond

// hearRest takes what the kernel has said.
func (k *kernel) hearRest() error {
	for end := time.Now().Add(lastWords); ; {
		if all, err := k.hearSome(time.Now().Add(atOnce)); all || err != nil || time.Now().After(end) {
			return err
		}
	}
}

// hearSome waits for messages until a time, takes what was logged so far too, and says whether that is all there was by then.
func (k *kernel) hearSome(until time.Time) (all bool, err error) {
	all, err = take(k.events, until, "the kernel's trace", unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_TRACE, func(data []byte) {
		if heard, err := decode(data); err == nil { // a kernel that says it otherwise says it of all packets
			k.hear(heard)
		}
	})
	if err != nil || k.logger == nil {
		return all, err
	}
	k.joinWaiting() // what was logged before what will be
	allLogged, err := take(k.logger.conn, time.Now().Add(atOnce), "what iptables-legacy does", unix.NFNL_SUBSYS_ULOG<<8|logMessage, func(data []byte) {
		if heard, ok := decodeLog(data); ok {
			k.hearLog(heard)
		}
	})
	k.joinWaiting()
	return all && allLogged, err
}

// take waits for messages until a time, and gives those of a type, with what else is there by then; it says whether that was
// all. What names their source in errors.
func take(conn *netlink.Conn, until time.Time, what string, kind netlink.HeaderType, to func(data []byte)) (all bool, err error) {
	for enough := until.Add(quiet / 2); ; until = time.Now().Add(atOnce) {
		received, err := receive(conn, until)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return true, nil
		case errors.Is(err, unix.ENOBUFS):
			return false, ErrLost
		case err != nil:
			return false, fmt.Errorf("listen to %s: %w", what, err)
		}
		for _, m := range received {
			if m.Header.Type == kind {
				to(m.Data)
			}
		}
		if time.Now().After(enough) {
			return false, nil
		}
	}
}

// receive waits for messages until a time. On a busy machine this may be asked for, or go on, after that time, when a
// connection with a deadline gives nothing, whatever is there.
func receive(conn *netlink.Conn, until time.Time) ([]netlink.Message, error) {
	if err := conn.SetReadDeadline(until); err != nil {
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

// hasMore says whether there is something to be received, if only an error.
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
