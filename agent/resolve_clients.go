package agent

import (
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/internal/uds"
)

// clientUsers are who may speak xDS over the agent's socket, besides the agent's own user, root, and that of proxies.
// Whoever may is the workload to the control plane. With Envoy beside the application, that is Envoy alone unless somebody
// says otherwise; without Envoy it is the application, whose user nothing tells.
func (r *resolver) clientUsers() {
	const everyone = "*"
	otherwise := "none"
	if r.config.Envoy.Disabled {
		otherwise = everyone
	}
	text := r.env.text("controlPlane.socketUsers", "XDS_SOCKET_USERS", otherwise, sourceDefault)
	users, err := parseUsers(text)
	if err != nil {
		r.env.refuse("XDS_SOCKET_USERS", text, "write user ids with commas, as 1000,1001; or *, or none")
	}
	c := &r.config.ControlPlane
	if c.SocketUsers = users; len(users) > 0 {
		c.SocketUsers = append(users, uds.DefaultUsers()...)
	}
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

// socketMode lets those users reach the socket; the kernel is asked then who they are.
func (c ControlPlaneConfig) socketMode() os.FileMode {
	if len(c.SocketUsers) > 0 {
		return 0o666
	}
	return 0o600
}
