package trace

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// For iptables-legacy, the kernel sends trace messages to the namespace's packet logger. By default that is the kernel
// log in the initial namespace, and none in others. During the trace it is nfnetlink_log, which sends them to the
// listeners of group 0.

// Constants of linux/netfilter/nfnetlink_log.h.
const (
	logMessage = 0
	logConfig  = 1

	logCommand = 1 // an attribute of a configuration message

	commandBind   = 1 // binds a group
	commandPFBind = 3 // binds the logger to a family

	logGroup = 0 // the default group

	loggerName = "nfnetlink_log"
)

// logger receives the namespace's log messages.
type logger struct {
	conn     *netlink.Conn
	previous []previousLogger
	guard    *guard
}

// previousLogger is a family's previous logger, and the file through which it is restored.
type previousLogger struct {
	family byte
	name   string
	file   *os.File
}

// newLogger must be called on a thread in the namespace; it starts the guard there. Only the owner of the log group may
// change the loggers. Otherwise the second of two traces would later restore the logger that the first one has
// replaced.
func newLogger(guard []string) (l *logger, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("listen to what iptables-legacy does: %w", err)
		}
	}()
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, err
	}
	l = &logger{conn: conn}
	_ = conn.SetReadBuffer(1 << 20) // the kernel may limit it
	if err = bindGroup(conn, groupTimeout, pollTimeout); isGroupBusy(err) {
		err = fmt.Errorf("%w: another program of this namespace listens to the log group %d (another trace, or ulogd); stop it for the time of the trace", err, logGroup)
	}
	if err == nil {
		err = l.replaceLoggers(guard)
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// groupTimeout is how long newLogger waits for a group that a guard holds.
const groupTimeout = 200 * time.Millisecond

// bindGroup binds the log group to a socket. While another socket owns the group, it retries until the time is over.
func bindGroup(conn *netlink.Conn, within, pause time.Duration) error {
	for end := time.Now().Add(within); ; time.Sleep(pause) {
		err := command(conn, unix.AF_UNSPEC, commandBind)
		if !isGroupBusy(err) || time.Now().After(end) {
			return err
		}
	}
}

// isGroupBusy reports whether the error means that another socket owns the log group.
func isGroupBusy(err error) bool { return errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EPERM) }

// replaceLoggers sets nfnetlink_log as the logger of both families. It uses a second socket, because the first one may
// already receive log messages.
func (l *logger) replaceLoggers(guard []string) error {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		if err := l.openPreviousLogger(family); err != nil {
			return err
		}
	}
	if len(l.previous) > 0 && len(guard) > 0 {
		if l.guard, err = startGuard(guard, l.previous); err != nil {
			return err
		}
	}
	for _, g := range l.previous {
		if err := command(conn, g.family, commandPFBind); err != nil {
			return err
		}
	}
	return nil
}

// openPreviousLogger opens the file through which a family's logger is restored, if it is not nfnetlink_log already.
func (l *logger) openPreviousLogger(family byte) error {
	name, err := readLogger(family)
	if err != nil || name == loggerName {
		return err
	}
	file, err := os.OpenFile("/proc/sys/net/netfilter/nf_log/"+strconv.Itoa(int(family)), os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("the packets' logger is %s, and could not be put back: %w (run trace where /proc/sys can be written, with --network-namespace)", name, err)
	}
	l.previous = append(l.previous, previousLogger{family, name, file})
	return nil
}

// readLogger returns the name of a family's logger, or "NONE". A line is " 2 nf_log_ipv4 (nf_log_ipv4,nfnetlink_log)".
func readLogger(family byte) (string, error) {
	file, err := os.Open("/proc/thread-self/net/netfilter/nf_log")
	if err != nil {
		return "", err
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if words := strings.Fields(lines.Text()); len(words) > 1 && words[0] == strconv.Itoa(int(family)) {
			return words[1], nil
		}
	}
	return "", fmt.Errorf("%s does not tell the logger of family %d", file.Name(), family)
}

func command(conn *netlink.Conn, family, command byte) error {
	body, err := netlink.MarshalAttributes([]netlink.Attribute{{Type: logCommand, Data: []byte{command}}})
	if err != nil {
		return err
	}
	_, err = conn.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_ULOG<<8 | logConfig, Flags: netlink.Request | netlink.Acknowledge},
		Data:   append([]byte{family, unix.NFNETLINK_V0, 0, logGroup}, body...),
	})
	return err
}

// Close restores the loggers and releases the group.
func (l *logger) Close() error {
	var errs []error
	for _, g := range l.previous {
		_, err := g.file.WriteString(g.name)
		errs = append(errs, err, g.file.Close())
	}
	if l.guard != nil {
		l.guard.dismiss()
	}
	return errors.Join(append(errs, l.conn.Close())...)
}
