package agent_test

import (
	"github.com/pilotfish-mesh/pilotfish/agent"
	"github.com/pilotfish-mesh/pilotfish/agent/command"
)

func init() { agent.RunMain = command.Main }
