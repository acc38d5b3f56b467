package kube

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/pilotfish-mesh/pilotfish/internal/testcluster"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testcluster.Tests{M: m}) }
