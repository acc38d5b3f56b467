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

// ParentEnvoy queries a parent Envoy after a hot restart. The parent's admin interface is closed, but the parent still
// responds to the child on the hot-restart socket.
type ParentEnvoy struct {
	conn *net.UnixConn
	peer *net.UnixAddr
	lost error // the error of the first failed query, which all later queries return
}

// ConnectParent binds the path of the child's hot-restart socket, so that this process receives the parent's responses.
// h.Epoch is the parent's epoch. Call it only after the child has started. A running child would need its socket only
// for statistics, and HotRestart's arguments disable its requests for them. ConnectParent does not restore the child's
// socket, because a late response, which the child does not read, could block the parent.
func (h HotRestart) ConnectParent() (*ParentEnvoy, error) {
	peer := fmt.Sprintf("%s_parent_%d", h.socketPrefix(), h.socketID(h.Epoch))
	path := fmt.Sprintf("%s_child_%d", h.socketPrefix(), h.socketID(h.Epoch+1))
	conn, err := listenReplacing(h.User, path)
	if err != nil {
		return nil, fmt.Errorf("querying the parent Envoy: %w", err)
	}
	return &ParentEnvoy{conn: conn, peer: &net.UnixAddr{Name: peer, Net: "unixgram"}}, nil
}

// Close closes the socket.
func (e *ParentEnvoy) Close() error { return e.conn.Close() }

// The request for statistics: HotRestartMessage{request: {stats: {}}} in source/server/hot_restart.proto.
var statsRequest = []byte{0x0a, 2, 0x1a, 0}

const (
	// lengthPrefix is the size of the length field before each message.
	lengthPrefix = 8
	// maxStatsResponse limits the size of a response.
	maxStatsResponse = 256 << 20
	maxDatagram      = 4 << 10
)

// Gauges returns the values of the parent's gauges. After a failed call, all later calls fail, because a late response
// could be mistaken for the response to a later query.
func (e *ParentEnvoy) Gauges(ctx context.Context) (map[string]uint64, error) {
	if e.lost != nil {
		return nil, e.lost
	}
	var gauges map[string]uint64
	gauges, e.lost = e.queryStats(ctx)
	return gauges, e.lost
}

func (e *ParentEnvoy) queryStats(ctx context.Context) (map[string]uint64, error) {
	stop := context.AfterFunc(ctx, func() { _ = e.conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	message := append(binary.BigEndian.AppendUint64(nil, uint64(len(statsRequest))), statsRequest...)
	if _, err := e.conn.WriteToUnix(message, e.peer); err != nil {
		return nil, fmt.Errorf("querying the parent Envoy: %w", err)
	}
	response, err := e.readMessage()
	if err != nil {
		return nil, fmt.Errorf("reading the response of the parent Envoy: %w", err)
	}
	return parseGauges(response)
}

// readMessage assembles a message from its datagrams.
func (e *ParentEnvoy) readMessage() ([]byte, error) {
	var response []byte
	buffer := make([]byte, lengthPrefix+maxDatagram)
	for want := uint64(lengthPrefix); uint64(len(response)) < want; {
		n, err := e.conn.Read(buffer)
		if err != nil {
			return nil, err
		}
		first := len(response) == 0
		response = append(response, buffer[:n]...)
		if !first {
			continue
		}
		if n < lengthPrefix {
			return nil, fmt.Errorf("its first datagram has only %d bytes", n)
		}
		if want = binary.BigEndian.Uint64(response); want > maxStatsResponse {
			return nil, fmt.Errorf("its length is %d bytes", want)
		}
		want += lengthPrefix
	}
	return response[lengthPrefix:], nil
}

// Field numbers in HotRestartMessage: gauges is the map reply.stats.gauges from name (key) to value.
const (
	fieldReply, fieldStats, fieldGauges = 2, 3, 4
	fieldKey, fieldValue                = 1, 2
)

var errNoStats = errors.New("the parent Envoy's response contains no statistics: this version uses another hot restart protocol")

func parseGauges(message []byte) (map[string]uint64, error) {
	gauges, found := make(map[string]uint64), false
	err := forEachField(message, fieldReply, func(reply []byte) error {
		return forEachField(reply, fieldStats, func(stats []byte) error {
			found = true
			return forEachField(stats, fieldGauges, func(entry []byte) error {
				return parseGaugeEntry(entry, gauges)
			})
		})
	})
	if err == nil && !found {
		err = errNoStats
	}
	return gauges, err
}

// forEachField calls f with the content of each embedded message whose field has this number.
func forEachField(message []byte, number protowire.Number, f func([]byte) error) error {
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

func parseGaugeEntry(entry []byte, gauges map[string]uint64) error {
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

// listenReplacing binds a socket at a temporary path and renames it to path, so that path exists at all times.
func listenReplacing(o *owner.Owner, path string) (*net.UnixConn, error) {
	staging := path + "_new"
	// Set the mode before the rename. After the rename, Envoy's user could replace the file by a symbolic link.
	private := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		controlErr := c.Control(func(fd uintptr) { err = syscall.Fchmod(int(fd), 0o600) })
		return cmp.Or(controlErr, err)
	}}
	bound, err := private.ListenPacket(context.Background(), "unixgram", staging)
	conn, _ := bound.(*net.UnixConn)
	if err == nil {
		err = o.Chown(staging)
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
