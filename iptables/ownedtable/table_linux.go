package ownedtable

import (
	"encoding/binary"
	"errors"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Table creates a table of family inet in the network namespace of the calling thread. It replaces an existing table
// with the same name. Only the returned connection can change the table. The kernel removes the table when the
// connection is closed. Kernels before 5.12 do not support this. With them, only Close removes the table.
func Table(name string) (*nftables.Conn, *nftables.Table, error) {
	var raw *netlink.Conn
	conn, err := nftables.New(nftables.AsLasting(), nftables.WithSockOptions(func(c *netlink.Conn) error { raw = c; return nil }))
	if err != nil {
		return nil, nil, err
	}
	t := &nftables.Table{Family: nftables.TableFamilyINet, Name: name}
	const owner = 2 // NFT_TABLE_F_OWNER
	err = replace(raw, t, owner)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) {
		err = replace(raw, t, 0)
	}
	if err != nil {
		return nil, nil, errors.Join(err, conn.CloseLasting())
	}
	return conn, t, nil
}

// Close removes the table and closes the connection. Changes that were not flushed have no effect.
func Close(conn *nftables.Conn, t *nftables.Table) error {
	conn.DelTable(t)
	err := conn.Flush()
	if errors.Is(err, unix.ENOENT) {
		err = nil
	}
	return errors.Join(err, conn.CloseLasting())
}

func replace(conn *netlink.Conn, t *nftables.Table, flags uint32) error {
	name := netlink.Attribute{Type: unix.NFTA_TABLE_NAME, Data: []byte(t.Name + "\x00")}
	named, err := netlink.MarshalAttributes([]netlink.Attribute{name})
	if err != nil {
		return err
	}
	flagged, err := netlink.MarshalAttributes([]netlink.Attribute{name,
		{Type: unix.NFTA_TABLE_FLAGS, Data: binary.BigEndian.AppendUint32(nil, flags)}})
	if err != nil {
		return err
	}
	begin := netlink.Message{Header: netlink.Header{Type: unix.NFNL_MSG_BATCH_BEGIN, Flags: netlink.Request},
		Data: []byte{0, 0, unix.NFNL_SUBSYS_NFTABLES >> 8, unix.NFNL_SUBSYS_NFTABLES & 255}}
	end := begin
	end.Header.Type = unix.NFNL_MSG_BATCH_END
	batch := []netlink.Message{
		begin,
		// Create the table first, so that its deletion cannot fail.
		message(unix.NFT_MSG_NEWTABLE, netlink.Create, t.Family, named),
		message(unix.NFT_MSG_DELTABLE, 0, t.Family, named),
		message(unix.NFT_MSG_NEWTABLE, netlink.Create, t.Family, flagged),
		end,
	}
	if _, err := conn.SendMessages(batch); err != nil {
		return err
	}
	for range batch[1 : len(batch)-1] {
		_, received := conn.Receive()
		err = errors.Join(err, received)
	}
	return err
}

func message(kind uint16, flags netlink.HeaderFlags, family nftables.TableFamily, attributes []byte) netlink.Message {
	return netlink.Message{
		Header: netlink.Header{
			Type:  netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | kind),
			Flags: netlink.Request | netlink.Acknowledge | flags,
		},
		Data: append([]byte{byte(family), unix.NFNETLINK_V0, 0, 0}, attributes...),
	}
}
