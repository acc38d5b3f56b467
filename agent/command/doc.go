// Package command implements the agent's command line: `proxy` and `run`, which run the agent, and the commands that query
// and change a running agent. It defines the exit codes.
package command
