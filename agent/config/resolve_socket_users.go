package config

import (
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/internal/uds"
)

// resolveSocketUsers resolves which users may use the xDS socket, in addition to the agent's user, root and the proxy
// user. The control plane cannot distinguish their clients from the workload's Envoy. If the agent runs Envoy, the
// default is no additional user. If the agent runs no Envoy, the default is all users, because the application is the
// client and its user is unknown.
func (r *resolver) resolveSocketUsers() {
	const everyone = "*"
	otherwise := "none"
	if r.config.Envoy.Disabled {
		otherwise = everyone
	}
	text := r.env.text("controlPlane.socketUsers", "XDS_SOCKET_USERS", otherwise, sourceDefault)
	users, err := parseUsers(text)
	if err != nil {
		r.env.addValueError("XDS_SOCKET_USERS", text, "write user IDs separated by commas, such as 1000,1001, or * for all users, or none")
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

// SocketMode returns the file mode of the xDS socket. The mode 0666 lets all users connect; the server then rejects
// users that are not in SocketUsers.
func (c ControlPlane) SocketMode() os.FileMode {
	if len(c.SocketUsers) > 0 {
		return 0o666
	}
	return 0o600
}
