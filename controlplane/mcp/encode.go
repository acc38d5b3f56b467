package mcp

import (
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"
	mcpv1 "istio.io/api/mcp/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// ResourceName returns the name of the xDS resource that contains the document with this key.
func ResourceName(key config.Key) string { return key.Namespace + "/" + key.Name }

// Encode returns the xDS resource that contains the document r. It fails if r is not a document of Istio's kinds.
func Encode(r *config.Resource) (*mcpv1.Resource, error) {
	spec, ok := r.Spec.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("%s is not a document of Istio's kinds", r.Key)
	}
	body := &anypb.Any{}
	if err := anypb.MarshalFrom(body, spec, proto.MarshalOptions{Deterministic: true}); err != nil {
		return nil, fmt.Errorf("encoding %s: %w", r.Key, err)
	}
	metadata := &mcpv1.Metadata{Name: ResourceName(r.Key), Labels: r.Labels, Annotations: r.Annotations}
	if !r.Created.IsZero() {
		metadata.CreateTime = timestamppb.New(r.Created)
	}
	return &mcpv1.Resource{Metadata: metadata, Body: body}, nil
}
