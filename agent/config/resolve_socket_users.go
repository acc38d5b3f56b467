package config

import (
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/internal/uds"
)

// resolveSocketUsers resolves the users who may use the xDS socket, in addition to the agent's user, root and the proxy
// user. For the control plane, each of them is the workload. With Envoy, the default is none, so that only Envoy uses
// it. Without Envoy, the default is all users, because the application's user is unknown.
func (r *resolver) resolveSocketUsers() {
	const everyone = "*"
	otherwise := "none"
	if r.config.Envoy.Disabled {
		otherwise = everyone
	}
	text := r.env.text("controlPlane.socketUsers", "XDS_SOCKET_USERS", otherwise, sourceDefault)
	users, err := parseUsers(text)
	if err != nil {
		r.env.addValueError("XDS_SOCKET_USERS", text, "write user ids with commas, as 1000,1001; or *, or none")
	}
	c := &r.config.ControlPlane
	if c.SocketUsers, c.ListedUsers = users, users; len(users) > 0 {
		c.SocketUsers = slices.Concat(users, uds.DefaultUsers())
	}
	c.NoSecret = !r.env.boolean("controlPlane.guardSockets", "GUARD_AGENT_SOCKETS", true)
}

func parseUsers(text string) (uds.Users, error) {
	switch text {
	case "*":
		return uds.Users{uds.Everyone}, nil
	case "none":
		return nil, nil
	}
	var users uds.Users
	for one := range strings.SplitSeq(text, ",") {
		n, err := strconv.ParseUint(strings.TrimSpace(one), 10, 32)
		if err == nil && uint32(n) == uds.Everyone {
			err = strconv.ErrRange
		}
		if err != nil {
			return nil, err
		}
		if !slices.Contains(users, uint32(n)) {
			users = append(users, uint32(n))
		}
	}
	if len(users) == 0 {
		return nil, errors.New("no user")
	}
	return users, nil
}

// SocketMode returns the socket's mode. Mode 0666 lets the users connect; the server then checks their credentials.
func (c ControlPlane) SocketMode() os.FileMode {
	if len(c.SocketUsers) > 0 {
		return 0o666
	}
	return 0o600
}
