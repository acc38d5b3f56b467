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

// What iptables-legacy does with a packet that is traced, the kernel tells the logger of the namespace. That is its own log
// usually, and nobody's outside of the machine's own namespace. For the time of the trace it is nfnetlink_log, which
// tells those who listen to its group 0.

// Numbers of linux/netfilter/nfnetlink_log.h.
const (
	logMessage = 0
	logConfig  = 1

	logCommand = 1 // attribute of a configuration

	commandBind   = 1 // of a group
	commandPFBind = 3 // of a family to the logger

	logGroup = 0 // of what is logged without naming one

	loggerName = "nfnetlink_log"
)

// logger has the namespace's packets logged to a socket.
type logger struct {
	conn  *netlink.Conn
	given []formerLogger
	guard *guard
}

// formerLogger is a family's before, and the file that it is put back by.
type formerLogger struct {
	family byte
	name   string
	file   *os.File
}

// newLogger is called on a thread in the namespace, where the guard is started, too. Who has the group may change the
// loggers, as the one of two traces that came later would put back what the other's has replaced.
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
	_ = conn.SetReadBuffer(1 << 20) // as much as it gives
	if err = takeGroup(conn, passing, atOnce); isTaken(err) {
		err = fmt.Errorf("%w: another program of this namespace listens to the log group %d (another trace, or ulogd); stop it for the time of the trace", err, logGroup)
	}
	if err == nil {
		err = l.takeAll(guard)
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// passing is how long the group is waited for, which a guard has for a moment.
const passing = 200 * time.Millisecond

// takeGroup binds the log group to a socket, trying again while another has it, for as long as that may take.
func takeGroup(conn *netlink.Conn, within, pause time.Duration) error {
	for end := time.Now().Add(within); ; time.Sleep(pause) {
		err := command(conn, unix.AF_UNSPEC, commandBind)
		if !isTaken(err) || time.Now().After(end) {
			return err
		}
	}
}

// isTaken says whether the log group is somebody else's.
func isTaken(err error) bool { return errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EPERM) }

// takeAll asks by a socket of its own: the other one may hear of packets already.
func (l *logger) takeAll(guard []string) error {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		if err := l.note(family); err != nil {
			return err
		}
	}
	if len(l.given) > 0 && len(guard) > 0 {
		if l.guard, err = startGuard(guard, l.given); err != nil {
			return err
		}
	}
	for _, g := range l.given {
		if err := command(conn, g.family, commandPFBind); err != nil {
			return err
		}
	}
	return nil
}

// note keeps by what the logger of a family is put back, if it is another.
func (l *logger) note(family byte) error {
	name, err := loggerOf(family)
	if err != nil || name == loggerName {
		return err
	}
	file, err := os.OpenFile("/proc/sys/net/netfilter/nf_log/"+strconv.Itoa(int(family)), os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("the packets' logger is %s, and could not be put back: %w (run trace where /proc/sys can be written, with --network-namespace)", name, err)
	}
	l.given = append(l.given, formerLogger{family, name, file})
	return nil
}

// loggerOf is the name of a family's, "NONE" without: " 2 nf_log_ipv4 (nf_log_ipv4,nfnetlink_log)".
func loggerOf(family byte) (string, error) {
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

// Close puts back what was there. The group is free when the socket is closed.
func (l *logger) Close() error {
	var errs []error
	for _, g := range l.given {
		_, err := g.file.WriteString(g.name)
		errs = append(errs, err, g.file.Close())
	}
	if l.guard != nil {
		l.guard.dismiss()
	}
	return errors.Join(append(errs, l.conn.Close())...)
}
