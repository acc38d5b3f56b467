package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"strings"
	"time"
)

// Place is where a machine is, as its cloud says.
type Place struct {
	Region, Zone string
	// Facts go into the node's metadata, under Istio's names.
	Facts map[string]string
}

// locality is region/zone.
func (p Place) locality() string { return strings.TrimSuffix(p.Region+"/"+p.Zone, "/") }

const (
	// cloudTime bounds all questions to a cloud together; cloudAnswer, each answer's size.
	cloudTime   = 5 * time.Second
	cloudAnswer = 1 << 20
)

// Where the clouds answer, from inside of their machines.
const (
	gcpMetadata       = "http://metadata.google.internal"
	linkLocalMetadata = "http://169.254.169.254"
)

// cloud asks where the machine is. That takes a question over the network, which is asked only where the platform was
// named: on a machine without that platform it would hold up each start.
func (r *resolver) cloud() {
	platform := r.env.choice("cloudPlatform", "CLOUD_PLATFORM", "none", "none", "gcp", "aws", "azure")
	if platform == "none" || r.in.Cloud == nil || len(r.env.errs) > 0 {
		return
	}
	place, err := r.in.Cloud(platform)
	if err != nil {
		r.env.warn("CLOUD_PLATFORM=%s: where this machine is was not learnt, and the proxy starts without it: %v", platform, err)
		return
	}
	id := &r.config.Identity
	id.Locality = place.locality()
	r.env.note("locality", id.Locality, "cloud "+platform)
	if _, given := id.Metadata["PLATFORM_METADATA"]; !given && len(place.Facts) > 0 {
		id.Metadata["PLATFORM_METADATA"] = place.Facts
		r.env.note("metadata.PLATFORM_METADATA", place.Facts, "cloud "+platform)
	}
}

// askCloud asks a platform's own service, at the address where every machine of it finds that.
func askCloud(platform string) (Place, error) {
	ctx, cancel := context.WithTimeout(context.Background(), cloudTime)
	defer cancel()
	base := linkLocalMetadata
	if platform == "gcp" {
		base = gcpMetadata
	}
	return (&cloudService{base: base, client: cloudClient()}).place(ctx, platform)
}

// cloudClient takes no proxy, whatever the environment says: what it asks is on the machine.
func cloudClient() *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, ResponseHeaderTimeout: cloudTime}}
}

// cloudService is the metadata service of one cloud.
type cloudService struct {
	base   string
	client *http.Client
}

func (s *cloudService) place(ctx context.Context, platform string) (Place, error) {
	switch platform {
	case "gcp":
		return s.gcp(ctx)
	case "aws":
		return s.aws(ctx)
	case "azure":
		return s.azure(ctx)
	}
	return Place{}, fmt.Errorf("cloud platform %q is not known", platform)
}

func (s *cloudService) gcp(ctx context.Context) (Place, error) {
	ask := func(what string) string {
		text, _ := s.ask(ctx, http.MethodGet, "/computeMetadata/v1/"+what, "Metadata-Flavor", "Google")
		return text
	}
	zone, err := s.ask(ctx, http.MethodGet, "/computeMetadata/v1/instance/zone", "Metadata-Flavor", "Google")
	if err != nil {
		return Place{}, err
	}
	p := Place{Zone: path.Base(zone), Facts: map[string]string{}}
	if i := strings.LastIndexByte(p.Zone, '-'); i > 0 {
		p.Region = p.Zone[:i]
	}
	p.fact("gcp_project", ask("project/project-id"))
	p.fact("gcp_project_number", ask("project/numeric-project-id"))
	p.fact("gcp_gke_cluster_name", ask("instance/attributes/cluster-name"))
	p.fact("gcp_gce_instance", ask("instance/name"))
	p.fact("gcp_gce_instance_id", ask("instance/id"))
	location := ask("instance/attributes/cluster-location")
	if location == "" {
		location = p.Zone
	}
	p.fact("gcp_location", location)
	return p, nil
}

func (s *cloudService) aws(ctx context.Context) (Place, error) {
	token, err := s.ask(ctx, http.MethodPut, "/latest/api/token", "X-aws-ec2-metadata-token-ttl-seconds", "60")
	if err != nil {
		return Place{}, err
	}
	text, err := s.ask(ctx, http.MethodGet, "/latest/dynamic/instance-identity/document", "X-aws-ec2-metadata-token", token)
	if err != nil {
		return Place{}, err
	}
	var document struct{ Region, AvailabilityZone, InstanceID string }
	if err := json.Unmarshal([]byte(text), &document); err != nil {
		return Place{}, fmt.Errorf("reading the instance's identity document: %w", err)
	}
	p := Place{Region: document.Region, Zone: document.AvailabilityZone, Facts: map[string]string{}}
	p.fact("aws_region", document.Region)
	p.fact("aws_availability_zone", document.AvailabilityZone)
	p.fact("aws_instance_id", document.InstanceID)
	return p, nil
}

func (s *cloudService) azure(ctx context.Context) (Place, error) {
	text, err := s.ask(ctx, http.MethodGet, "/metadata/instance/compute?api-version=2019-08-15", "Metadata", "true")
	if err != nil {
		return Place{}, err
	}
	var compute struct {
		Name, Location, Zone, VMID string
		TagsList                   []struct{ Name, Value string }
	}
	if err := json.Unmarshal([]byte(text), &compute); err != nil {
		return Place{}, fmt.Errorf("reading what Azure says of the machine: %w", err)
	}
	p := Place{Region: compute.Location, Zone: compute.Zone, Facts: map[string]string{}}
	for _, tag := range compute.TagsList {
		p.fact("azure_"+tag.Name, tag.Value)
	}
	p.fact("azure_name", compute.Name)
	p.fact("azure_location", compute.Location)
	p.fact("azure_vmId", compute.VMID)
	return p, nil
}

func (p Place) fact(name, value string) {
	if value != "" {
		p.Facts[name] = value
	}
}

// ask gives an answer's body; with one header, which each of these services wants, so that a web page cannot ask it.
func (s *cloudService) ask(ctx context.Context, method, path, header, value string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, method, s.base+path, nil)
	if err != nil {
		return "", err
	}
	request.Header.Set(header, value)
	response, err := s.client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, cloudAnswer))
	if response.StatusCode != http.StatusOK {
		err = errors.Join(err, fmt.Errorf("%s answers %s", s.base+path, response.Status))
	}
	return strings.TrimSpace(string(body)), err
}
