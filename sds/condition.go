package sds

import (
	"github.com/pilotfish-mesh/pilotfish/internal/health"
)

// What a person can do.
const (
	authorityRemedy = "see that the certificate authority runs and takes the token, and that CA_ADDR and the root certificate are right"
	filesRemedy     = "see that the files are there, belong together, and are renewed in time"
)

// Condition is Health, with since when and what to do.
func (s *Server) Condition() health.Condition {
	ok, reason := s.Health()
	c := health.Condition{OK: ok, Reason: reason}
	if reason == "" || s.config.Source == nil {
		return c
	}
	c.Remedy = authorityRemedy
	if _, files := s.config.Source.(*FileSource); files {
		c.Remedy = filesRemedy
	}
	if leaf := s.config.Source.Current().Leaf; !ok && leaf != nil {
		c.Since = leaf.NotAfter
	}
	return c
}
