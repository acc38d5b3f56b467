// Package oauth has the agent's token exchange talk to a whole OAuth server that nobody here wrote. It is a module of
// its own, so that the project depends on none of that server: `make test` runs it after the others.
package oauth
