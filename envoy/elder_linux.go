package envoy

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/pilotfish-mesh/pilotfish/internal/owner"
)

// Elder asks an Envoy that another one took over from by hot restart. That one's admin interface is closed; what is left
// is the socket on which it answers the newer one.
type Elder struct {
	conn *net.UnixConn
	peer *net.UnixAddr
	lost error // why there are no more answers
}

// Elder takes the newer Envoy's place before the older one, whose epoch this is: answers go to the name of the newer one's
// socket. That one must not need them any more: it asks while it starts, and for statistics, which HotRestart's arguments
// forbid it. The place is not given back, so that no late answer makes the older one wait for a reader.
func (h HotRestart) Elder() (*Elder, error) {
	peer := fmt.Sprintf("%s_parent_%d", h.sockets(), h.socketID(h.Epoch))
	own := fmt.Sprintf("%s_child_%d", h.sockets(), h.socketID(h.Epoch+1))
	conn, err := listenInPlace(h.User, own)
	if err != nil {
		return nil, fmt.Errorf("asking an Envoy that was taken over from: %w", err)
	}
	return &Elder{conn: conn, peer: &net.UnixAddr{Name: peer, Net: "unixgram"}}, nil
}

// Close ends the questions.
func (e *Elder) Close() error { return e.conn.Close() }

// The question for statistics: HotRestartMessage{request: {stats: {}}}, of source/server/hot_restart.proto.
var askStats = []byte{0x0a, 2, 0x1a, 0}

const (
	// lengthBytes is what goes before each message: its length.
	lengthBytes = 8
	// mostStats bounds an answer.
	mostStats = 256 << 20
	datagram  = 4 << 10
)

// Gauges gives the values of the gauges that the Envoy has used. Once there was no answer there is none any more: one that
// comes late could not be told from the next.
func (e *Elder) Gauges(ctx context.Context) (map[string]uint64, error) {
	if e.lost != nil {
		return nil, e.lost
	}
	var gauges map[string]uint64
	gauges, e.lost = e.ask(ctx)
	return gauges, e.lost
}

func (e *Elder) ask(ctx context.Context) (map[string]uint64, error) {
	stop := context.AfterFunc(ctx, func() { _ = e.conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	message := append(binary.BigEndian.AppendUint64(nil, uint64(len(askStats))), askStats...)
	if _, err := e.conn.WriteToUnix(message, e.peer); err != nil {
		return nil, fmt.Errorf("asking an Envoy that was taken over from: %w", err)
	}
	answer, err := e.receive()
	if err != nil {
		return nil, fmt.Errorf("the answer of an Envoy that was taken over from: %w", err)
	}
	return parentGauges(answer)
}

// receive puts one message together from its datagrams.
func (e *Elder) receive() ([]byte, error) {
	var answer []byte
	buffer := make([]byte, lengthBytes+datagram)
	for want := uint64(lengthBytes); uint64(len(answer)) < want; {
		n, err := e.conn.Read(buffer)
		if err != nil {
			return nil, err
		}
		first := len(answer) == 0
		answer = append(answer, buffer[:n]...)
		if !first {
			continue
		}
		if n < lengthBytes {
			return nil, fmt.Errorf("it begins with %d bytes", n)
		}
		if want = binary.BigEndian.Uint64(answer); want > mostStats {
			return nil, fmt.Errorf("it says that it has %d bytes", want)
		}
		want += lengthBytes
	}
	return answer[lengthBytes:], nil
}

// Numbers of the fields on the way to the gauges.
const (
	fieldReply, fieldStats, fieldGauges = 2, 3, 4
	fieldKey, fieldValue                = 1, 2
)

var errNoStats = errors.New("it has no statistics: this Envoy speaks another hot restart protocol")

func parentGauges(message []byte) (map[string]uint64, error) {
	gauges, found := make(map[string]uint64), false
	err := fields(message, fieldReply, func(reply []byte) error {
		return fields(reply, fieldStats, func(stats []byte) error {
			found = true
			return fields(stats, fieldGauges, func(entry []byte) error {
				return gaugeEntry(entry, gauges)
			})
		})
	})
	if err == nil && !found {
		err = errNoStats
	}
	return gauges, err
}

// fields calls f for each message in the field of that number.
func fields(message []byte, number protowire.Number, f func([]byte) error) error {
	for len(message) > 0 {
		got, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return protowire.ParseError(n)
		}
		message = message[n:]
		size := protowire.ConsumeFieldValue(got, kind, message)
		if size < 0 {
			return protowire.ParseError(size)
		}
		if got == number && kind == protowire.BytesType {
			content, _ := protowire.ConsumeBytes(message)
			if err := f(content); err != nil {
				return err
			}
		}
		message = message[size:]
	}
	return nil
}

func gaugeEntry(entry []byte, gauges map[string]uint64) error {
	var name string
	var value uint64
	for len(entry) > 0 {
		number, kind, tag := protowire.ConsumeTag(entry)
		size := -1
		switch {
		case tag < 0:
			return protowire.ParseError(tag)
		case number == fieldKey && kind == protowire.BytesType:
			name, size = protowire.ConsumeString(entry[tag:])
		case number == fieldValue && kind == protowire.VarintType:
			value, size = protowire.ConsumeVarint(entry[tag:])
		default:
			size = protowire.ConsumeFieldValue(number, kind, entry[tag:])
		}
		if size < 0 {
			return protowire.ParseError(size)
		}
		entry = entry[tag+size:]
	}
	gauges[name] = value
	return nil
}

// listenInPlace binds a socket in place of the one that has the name: there is one at every moment.
func listenInPlace(o *owner.Owner, path string) (*net.UnixConn, error) {
	staging := path + "_new"
	// The mode is that of the socket itself when it gets a name: what has the name later may be a link of Envoy's user.
	private := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		gone := c.Control(func(fd uintptr) { err = syscall.Fchmod(int(fd), 0o600) })
		return cmp.Or(gone, err)
	}}
	bound, err := private.ListenPacket(context.Background(), "unixgram", staging)
	conn, _ := bound.(*net.UnixConn)
	if err == nil {
		err = o.Give(staging)
	}
	if err == nil {
		err = os.Rename(staging, path)
	}
	if err == nil {
		return conn, nil
	}
	_ = os.Remove(staging)
	if conn != nil {
		_ = conn.Close()
	}
	return nil, err
}
