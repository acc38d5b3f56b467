// Package command implements the agent's commands: `proxy` and `run`, which run the agent, and the commands that query or
// control a running agent. It also defines their exit codes.
package command
