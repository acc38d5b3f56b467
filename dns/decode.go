package dns

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

// NameTableType is the type URL of the name table that control planes send.
const NameTableType = "type.googleapis.com/istio.networking.nds.v1.NameTable"

const (
	maxTableBytes = 64 << 20
	maxHosts      = 1 << 20
	// maxPerHost limits the addresses, the alternative names and the ports of one host, each separately.
	maxPerHost = 1 << 16
)

// Protobuf field numbers of istio.networking.nds.v1: NameTable (fieldTable), the entries of its map (fieldKey,
// fieldValue), and NameInfo.
const (
	fieldTable     = 1
	fieldKey       = 1
	fieldValue     = 2
	fieldIPs       = 1
	fieldRegistry  = 2
	fieldShortName = 3
	fieldNamespace = 4
	fieldAltHosts  = 5
	fieldPort      = 1001 // an extension of pilotfish's control plane
)

var errWire = errors.New("invalid protobuf encoding")

// DecodeTable decodes an istio.networking.nds.v1.NameTable and ignores unknown fields. It skips and counts invalid or
// excess host names, addresses and ports instead of rejecting the whole table. It returns an error for invalid protobuf
// encoding and for a table that exceeds maxTableBytes or maxHosts.
func DecodeTable(wire []byte) (*Table, error) {
	if len(wire) > maxTableBytes {
		return nil, fmt.Errorf("decoding the name table: its size of %d bytes exceeds the limit of %d", len(wire), maxTableBytes)
	}
	t := &Table{Hosts: make(map[string]Entry)}
	err := eachBytes(wire, func(field protowire.Number, value []byte) error {
		if field != fieldTable {
			return nil
		}
		if len(t.Hosts) >= maxHosts {
			return fmt.Errorf("more than %d hosts", maxHosts)
		}
		return t.decodeHost(value)
	})
	if err != nil {
		return nil, fmt.Errorf("decoding the name table: %w", err)
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
			if err != nil || len(e.IPs) >= maxPerHost {
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
			if _, ok := canonical(string(value)); !ok || len(e.AltHosts) >= maxPerHost {
				t.Skipped++
				return nil
			}
			e.AltHosts = append(e.AltHosts, string(value))
		case fieldPort:
			port, ok := decodePort(string(value))
			if !ok || len(e.Ports) >= maxPerHost {
				t.Skipped++
				return nil
			}
			e.Ports = append(e.Ports, port)
		}
		return nil
	})
}

// decodePort parses a port of the form "_http._tcp 80": name, protocol and number.
func decodePort(text string) (Port, bool) {
	labels, number, _ := strings.Cut(text, " ")
	name, protocol, _ := strings.Cut(labels, ".")
	n, err := strconv.ParseUint(number, 10, 16)
	if err != nil || !strings.HasPrefix(name, "_") || protocol != "_tcp" && protocol != "_udp" {
		return Port{}, false
	}
	return Port{Name: name[1:], Protocol: protocol[1:], Number: uint16(n)}, true
}

// eachBytes calls do for each length-delimited field of a message and skips other fields, which name tables do not use.
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
