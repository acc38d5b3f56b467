package sds

import (
	"github.com/pilotfish-mesh/pilotfish/internal/health"
)

// Condition returns the result of Health, with a remedy. If the certificate has expired, Since is the time of its
// expiry.
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

// Remedy returns what the user can do about a problem of the CA.
func (c *CASource) Remedy() string {
	return "check that the certificate authority runs and accepts the token, and that CA_ADDR and the root certificate are correct"
}

// Remedy returns what the user can do about a problem with the files.
func (s *FileSource) Remedy() string {
	return "check that the files exist, match, and are renewed in time"
}
