package xds

import (
	"fmt"
	"testing"
)

func TestClientWithoutAssignmentsDoesNotAccumulateClusters(t *testing.T) {
	sub := &subscription{}
	c := &connection{subs: map[string]*subscription{ClusterType: sub}}
	for n := range 10 * pageSize {
		sub.known = versionMap{}
		name := fmt.Sprintf("cluster-%d", n)
		sub.known.set(name, "1")
		c.addOwedClusters([]*Resource{{Name: name}})
	}
	if got := len(c.owedClusters); got > 2+pageSize {
		t.Errorf("the client has one cluster, and %d are in memory", got)
	}
}
