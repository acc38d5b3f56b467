// Package oauth tests the agent's token exchange with a complete OAuth server of another project. It is a separate
// module, so that the project does not depend on that server: `make test` runs it last.
package oauth
