package dns

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

// NameTableType is the type by which control planes send the names of the mesh.
const NameTableType = "type.googleapis.com/istio.networking.nds.v1.NameTable"

const (
	mostTableBytes = 64 << 20
	mostHosts      = 1 << 20
	// mostOfHost bounds addresses and other names of one host, each.
	mostOfHost = 1 << 16
)

// Fields of istio.networking.nds.v1.NameTable, its map's entries, and NameInfo.
const (
	fieldTable     = 1
	fieldKey       = 1
	fieldValue     = 2
	fieldIPs       = 1
	fieldRegistry  = 2
	fieldShortName = 3
	fieldNamespace = 4
	fieldAltHosts  = 5
	fieldPort      = 1001 // of our own control plane alone
)

var errWire = errors.New("it is not well-formed protobuf")

// DecodeTable reads an istio.networking.nds.v1.NameTable. Unknown fields are passed over; hosts that are no DNS names
// and addresses that are none are left out and counted, so that one of them does not cost all others.
func DecodeTable(wire []byte) (*Table, error) {
	if len(wire) > mostTableBytes {
		return nil, fmt.Errorf("name table: it has %d bytes, and the most is %d", len(wire), mostTableBytes)
	}
	t := &Table{Hosts: make(map[string]Entry)}
	err := eachBytes(wire, func(field protowire.Number, value []byte) error {
		if field != fieldTable {
			return nil
		}
		if len(t.Hosts) >= mostHosts {
			return fmt.Errorf("it has more than %d hosts", mostHosts)
		}
		return t.decodeHost(value)
	})
	if err != nil {
		return nil, fmt.Errorf("name table: %w", err)
	}
	return t, nil
}

func (t *Table) decodeHost(wire []byte) error {
	var host string
	var entry Entry
	err := eachBytes(wire, func(field protowire.Number, value []byte) error {
		switch field {
		case fieldKey:
			host = string(value)
		case fieldValue:
			return t.decodeEntry(&entry, value)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("host %.80q: %w", host, err)
	}
	if _, ok := canonical(host); !ok {
		t.Skipped++
		return nil
	}
	t.Hosts[host] = entry
	return nil
}

func (t *Table) decodeEntry(e *Entry, wire []byte) error {
	return eachBytes(wire, func(field protowire.Number, value []byte) error {
		switch field {
		case fieldIPs:
			ip, err := netip.ParseAddr(string(value))
			if err != nil || len(e.IPs) >= mostOfHost {
				t.Skipped++
				return nil
			}
			e.IPs = append(e.IPs, ip)
		case fieldRegistry:
			e.Registry = string(value)
		case fieldShortName:
			e.ShortName = string(value)
		case fieldNamespace:
			e.Namespace = string(value)
		case fieldAltHosts:
			if _, ok := canonical(string(value)); !ok || len(e.AltHosts) >= mostOfHost {
				t.Skipped++
				return nil
			}
			e.AltHosts = append(e.AltHosts, string(value))
		case fieldPort:
			port, ok := decodePort(string(value))
			if !ok || len(e.Ports) >= mostOfHost {
				t.Skipped++
				return nil
			}
			e.Ports = append(e.Ports, port)
		}
		return nil
	})
}

// decodePort reads "_http._tcp 80".
func decodePort(text string) (Port, bool) {
	labels, number, _ := strings.Cut(text, " ")
	name, protocol, _ := strings.Cut(labels, ".")
	n, err := strconv.ParseUint(number, 10, 16)
	if err != nil || !strings.HasPrefix(name, "_") || protocol != "_tcp" && protocol != "_udp" {
		return Port{}, false
	}
	return Port{Name: name[1:], Protocol: protocol[1:], Number: uint16(n)}, true
}

// eachBytes calls a function with each length-delimited field, which are all that name tables have.
func eachBytes(wire []byte, do func(protowire.Number, []byte) error) error {
	for len(wire) > 0 {
		field, kind, n := protowire.ConsumeTag(wire)
		if n < 0 {
			return errWire
		}
		wire = wire[n:]
		if kind != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(field, kind, wire); n < 0 {
				return errWire
			}
			wire = wire[n:]
			continue
		}
		value, n := protowire.ConsumeBytes(wire)
		if n < 0 {
			return errWire
		}
		if err := do(field, value); err != nil {
			return err
		}
		wire = wire[n:]
	}
	return nil
}
