package kernel

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Socket is a netlink socket, for one goroutine.
type Socket struct {
	fd       int
	sequence uint32
	limit    time.Time // of all that is asked; none if it is zero
	until    time.Time // the limit of what was asked last
}

// patience is how long the kernel may take over one question: what else its asker does between two has limits of its own,
// as programs have that wait for a lock.
const patience = 10 * time.Second

// largest is what a datagram of the kernel's has at most; a dump's are of 32 KiB (net/netlink/af_netlink.c).
const largest = 64 << 10

var buffers = sync.Pool{New: func() any { return new([largest]byte) }}

// Dial opens a socket to a protocol (unix.NETLINK_ROUTE) in the network namespace of the calling thread. An answer is
// waited for 10 seconds, and nothing beyond the limit, unless that is zero.
func Dial(protocol int, limit time.Time) (*Socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return nil, err
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1) // errors without what was sent
	s := &Socket{fd: fd, limit: limit}
	s.extend()
	left := unix.NsecToTimeval(max(time.Until(s.until), time.Millisecond).Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &left); err != nil { // sending to the kernel never waits
		_ = unix.Close(fd)
		return nil, err
	}
	return s, nil
}

// extend gives the next answer its time.
func (s *Socket) extend() {
	s.until = time.Now().Add(patience)
	if !s.limit.IsZero() && s.limit.Before(s.until) {
		s.until = s.limit
	}
}

// Close ends the socket.
func (s *Socket) Close() error { return unix.Close(s.fd) }

// Descriptor is the socket's, which stays its own.
func (s *Socket) Descriptor() int { return s.fd }

// Next is the number of the next message.
func (s *Socket) Next() uint32 {
	s.sequence++
	return s.sequence
}

// Numbers are the next ones of n messages; the first is given.
func (s *Socket) Numbers(n uint32) (first uint32) {
	first = s.sequence + 1
	s.sequence += n
	return first
}

// Room has the socket take datagrams and answers of that many bytes. Without the privilege it is what the system allows
// (sysctl net.core.wmem_max, net.core.rmem_max), and sending tells.
func (s *Socket) Room(toSend, toReceive int) {
	if toSend > 0 && unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, toSend) != nil {
		_ = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, toSend)
	}
	if toReceive > 0 && unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, toReceive) != nil {
		_ = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, toReceive)
	}
}

// Send sends messages as one datagram. What is sent to nobody in particular is sent to the kernel.
func (s *Socket) Send(messages []byte) error {
	s.extend()
	for {
		_, err := unix.Write(s.fd, messages)
		if !errors.Is(err, unix.EINTR) {
			return late(err)
		}
	}
}

// Receive gives what one datagram of the kernel's holds.
func (s *Socket) Receive() ([]Reply, error) {
	whole := buffers.Get().(*[largest]byte)
	defer buffers.Put(whole)
	buffer := whole[:]
	for {
		n, err := unix.Read(s.fd, buffer)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return nil, late(err)
		case n == len(buffer):
			return nil, fmt.Errorf("an answer of the kernel's has more than %d bytes", n)
		case time.Now().After(s.until):
			return nil, os.ErrDeadlineExceeded
		}
		return split(append([]byte(nil), buffer[:n]...)), nil
	}
}

// late is what a timeout of the socket's is called elsewhere.
func late(err error) error {
	if errors.Is(err, unix.EAGAIN) {
		return os.ErrDeadlineExceeded
	}
	return err
}

// ErrInterrupted is told when something changed while it was listed, so that the list may be neither what was there
// before nor after.
var ErrInterrupted = errors.New("it changed while it was read")

// Ask sends a question and gives the answers to it. An error that the kernel tells is a syscall.Errno.
func (s *Socket) Ask(kind, flags uint16, parts ...[]byte) ([]Reply, error) {
	if flags&unix.NLM_F_DUMP != unix.NLM_F_DUMP { // one of its bits means something else in requests that change
		flags |= unix.NLM_F_ACK
	}
	sequence := s.Next()
	if err := s.Send(Append(nil, kind, flags, sequence, parts...)); err != nil {
		return nil, err
	}
	return s.answers(sequence)
}

// Get asks a question that has one message as its answer, which comes faster than one whose end is told too. An error that
// the kernel tells is a syscall.Errno.
func (s *Socket) Get(kind uint16, parts ...[]byte) (Reply, error) {
	sequence := s.Next()
	if err := s.Send(Append(nil, kind, 0, sequence, parts...)); err != nil {
		return Reply{}, err
	}
	for {
		replies, err := s.Receive()
		if err != nil {
			return Reply{}, err
		}
		for _, r := range replies {
			switch {
			case r.Sequence != sequence: // of something that was given up
			case r.Errno() != 0:
				return Reply{}, r.Errno()
			default:
				return r, nil
			}
		}
	}
}

// answers reads to the end also what is of no use any more: the kernel lists nothing else meanwhile (EBUSY).
func (s *Socket) answers(sequence uint32) (all []Reply, err error) {
	interrupted := false
	for {
		replies, err := s.Receive()
		if err != nil {
			return nil, err
		}
		for _, r := range replies {
			if r.Sequence != sequence { // of something that was given up
				continue
			}
			interrupted = interrupted || r.interrupted()
			end := r.Kind == unix.NLMSG_DONE || r.Kind == unix.NLMSG_ERROR
			switch {
			case r.Errno() != 0:
				return nil, r.Errno()
			case end && interrupted:
				return nil, ErrInterrupted
			case end:
				return all, nil
			case !interrupted:
				all = append(all, r)
			}
		}
	}
}
