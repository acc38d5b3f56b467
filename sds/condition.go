package sds

import (
	"github.com/pilotfish-mesh/pilotfish/internal/health"
)

// Condition is Health, with since when and what to do.
func (s *Server) Condition() health.Condition {
	ok, reason := s.Health()
	c := health.Condition{OK: ok, Reason: reason}
	if reason == "" || s.config.Source == nil {
		return c
	}
	if advisor, ok := s.config.Source.(interface{ Remedy() string }); ok {
		c.Remedy = advisor.Remedy()
	}
	if leaf := s.config.Source.Current().Leaf; !ok && leaf != nil {
		c.Since = leaf.NotAfter
	}
	return c
}

// Remedy is what a person can do.
func (c *CASource) Remedy() string {
	return "see that the certificate authority runs and takes the token, and that CA_ADDR and the root certificate are right"
}

// Remedy is what a person can do.
func (s *FileSource) Remedy() string {
	return "see that the files are there, belong together, and are renewed in time"
}
