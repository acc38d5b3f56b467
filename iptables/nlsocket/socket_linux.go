package nlsocket

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Socket is a netlink socket. It is not safe for concurrent use.
type Socket struct {
	fd       int
	sequence uint32
	limit    time.Time // deadline of all requests; zero means none
	deadline time.Time // deadline of the current request
}

// requestTimeout is the timeout of one request. It does not include the time between requests, in which the caller may
// run programs.
const requestTimeout = 10 * time.Second

// maxDatagram is the maximum size of a datagram from the kernel. For dumps, the kernel uses 32 KiB (net/netlink/af_netlink.c).
const maxDatagram = 64 << 10

var buffers = sync.Pool{New: func() any { return new([maxDatagram]byte) }}

// Dial opens a socket for a netlink protocol, such as unix.NETLINK_ROUTE, in the network namespace of the calling thread.
// Each request has a timeout of 10 seconds. If limit is not zero, it is the deadline of all requests.
func Dial(protocol int, limit time.Time) (*Socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return nil, err
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1) // error replies do not include the request
	s := &Socket{fd: fd, limit: limit}
	s.resetDeadline()
	left := unix.NsecToTimeval(max(time.Until(s.deadline), time.Millisecond).Nanoseconds())
	// A send to the kernel never blocks, so it needs no timeout.
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &left); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return s, nil
}

// resetDeadline sets the deadline for the next request.
func (s *Socket) resetDeadline() {
	s.deadline = time.Now().Add(requestTimeout)
	if !s.limit.IsZero() && s.limit.Before(s.deadline) {
		s.deadline = s.limit
	}
}

// Close closes the socket.
func (s *Socket) Close() error { return unix.Close(s.fd) }

// Descriptor returns the file descriptor. The caller must not close it.
func (s *Socket) Descriptor() int { return s.fd }

// NextSequence returns a new sequence number for a request.
func (s *Socket) NextSequence() uint32 {
	s.sequence++
	return s.sequence
}

// ReserveSequence reserves n sequence numbers and returns the first.
func (s *Socket) ReserveSequence(n uint32) (first uint32) {
	first = s.sequence + 1
	s.sequence += n
	return first
}

// SetBuffers sets the sizes of the send and receive buffers in bytes; 0 leaves a size unchanged. Without CAP_NET_ADMIN,
// the sysctls net.core.wmem_max and net.core.rmem_max limit the sizes, and Send fails for larger datagrams.
func (s *Socket) SetBuffers(toSend, toReceive int) {
	if toSend > 0 && unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, toSend) != nil {
		_ = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, toSend)
	}
	if toReceive > 0 && unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, toReceive) != nil {
		_ = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, toReceive)
	}
}

// Send sends the messages to the kernel, as one datagram.
func (s *Socket) Send(messages []byte) error {
	s.resetDeadline()
	for {
		_, err := unix.Write(s.fd, messages)
		if !errors.Is(err, unix.EINTR) {
			return timeoutError(err)
		}
	}
}

// Receive returns the messages of one datagram from the kernel.
func (s *Socket) Receive() ([]Reply, error) {
	whole := buffers.Get().(*[maxDatagram]byte)
	defer buffers.Put(whole)
	buffer := whole[:]
	for {
		n, err := unix.Read(s.fd, buffer)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return nil, timeoutError(err)
		case n == len(buffer):
			return nil, fmt.Errorf("a netlink message of the kernel has %d bytes or more, which exceeds the receive buffer", n)
		case time.Now().After(s.deadline):
			return nil, os.ErrDeadlineExceeded
		}
		return split(append([]byte(nil), buffer[:n]...)), nil
	}
}

// timeoutError converts a socket timeout to the standard timeout error.
func timeoutError(err error) error {
	if errors.Is(err, unix.EAGAIN) {
		return os.ErrDeadlineExceeded
	}
	return err
}

// ErrInterrupted is returned if objects changed while the kernel listed them. The list may then be inconsistent.
var ErrInterrupted = errors.New("the objects changed while they were listed")

// Request sends a request and returns all replies. If the kernel rejects the request, the error is a syscall.Errno.
func (s *Socket) Request(kind, flags uint16, parts ...[]byte) ([]Reply, error) {
	// Compare both bits, because each has another meaning in requests that change objects.
	if flags&unix.NLM_F_DUMP != unix.NLM_F_DUMP {
		flags |= unix.NLM_F_ACK
	}
	sequence := s.NextSequence()
	if err := s.Send(Append(nil, kind, flags, sequence, parts...)); err != nil {
		return nil, err
	}
	return s.readReplies(sequence)
}

// Get sends a request that has a single reply. It does not request an ACK, so it is faster than Request. If the kernel
// rejects the request, the error is a syscall.Errno.
func (s *Socket) Get(kind uint16, parts ...[]byte) (Reply, error) {
	sequence := s.NextSequence()
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
			case r.Sequence != sequence: // reply to an abandoned request
			case r.Errno() != 0:
				return Reply{}, r.Errno()
			default:
				return r, nil
			}
		}
	}
}

// readReplies reads all replies to a request. It also reads the rest of an interrupted dump, because the kernel rejects
// another dump (EBUSY) until the current one is read completely.
func (s *Socket) readReplies(sequence uint32) (all []Reply, err error) {
	interrupted := false
	for {
		replies, err := s.Receive()
		if err != nil {
			return nil, err
		}
		for _, r := range replies {
			if r.Sequence != sequence { // reply to an abandoned request
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
