package config

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

// CloudLocation is the location of a machine according to its cloud provider.
type CloudLocation struct {
	Region, Zone string
	// Facts contains the entries of PLATFORM_METADATA in the node metadata. The keys are the same as in Istio.
	Facts map[string]string
}

// locality returns region/zone, or only the region if the zone is empty.
func (p CloudLocation) locality() string { return strings.TrimSuffix(p.Region+"/"+p.Zone, "/") }

const (
	// cloudTimeout limits the total time of all metadata requests; maxCloudResponse limits the size of each response.
	cloudTimeout     = 5 * time.Second
	maxCloudResponse = 1 << 20
)

// Base URLs of the metadata servers. Only machines of the cloud can reach them.
const (
	gcpMetadata       = "http://metadata.google.internal"
	linkLocalMetadata = "http://169.254.169.254"
)

// resolveCloud reads the machine's location from the cloud's metadata server. It does so only if CLOUD_PLATFORM is set.
// Outside a cloud, the requests would time out and delay each start.
func (r *resolver) resolveCloud() {
	platform := r.env.choice("cloudPlatform", "CLOUD_PLATFORM", "none", "none", "gcp", "aws", "azure")
	if platform == "none" || r.in.Cloud == nil || len(r.env.errs) > 0 {
		return
	}
	place, err := r.in.Cloud(platform)
	if err != nil {
		r.env.warn("CLOUD_PLATFORM=%s: cannot read the region and zone of this machine; the proxy starts without a locality: %v", platform, err)
		return
	}
	id := &r.config.Identity
	id.Locality = place.locality()
	r.env.addSetting("locality", id.Locality, "cloud "+platform)
	if _, given := id.Metadata["PLATFORM_METADATA"]; !given && len(place.Facts) > 0 {
		id.Metadata["PLATFORM_METADATA"] = place.Facts
		r.env.addSetting("metadata.PLATFORM_METADATA", place.Facts, "cloud "+platform)
	}
}

// QueryCloud queries the metadata server of platform: gcp, aws or azure.
func QueryCloud(platform string) (CloudLocation, error) {
	ctx, cancel := context.WithTimeout(context.Background(), cloudTimeout)
	defer cancel()
	base := linkLocalMetadata
	if platform == "gcp" {
		base = gcpMetadata
	}
	return (&cloudService{base: base, client: cloudClient()}).locate(ctx, platform)
}

// cloudClient returns an HTTP client for metadata servers. It ignores HTTP_PROXY and similar variables, because the
// metadata server is local to the machine.
func cloudClient() *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, ResponseHeaderTimeout: cloudTimeout}}
}

// cloudService is the client of one cloud's metadata server.
type cloudService struct {
	base   string
	client *http.Client
}

func (s *cloudService) locate(ctx context.Context, platform string) (CloudLocation, error) {
	switch platform {
	case "gcp":
		return s.locateGCP(ctx)
	case "aws":
		return s.locateAWS(ctx)
	case "azure":
		return s.locateAzure(ctx)
	}
	return CloudLocation{}, fmt.Errorf("cloud platform %q is not known", platform)
}

func (s *cloudService) locateGCP(ctx context.Context) (CloudLocation, error) {
	value := func(what string) string {
		text, _ := s.get(ctx, http.MethodGet, "/computeMetadata/v1/"+what, "Metadata-Flavor", "Google")
		return text
	}
	zone, err := s.get(ctx, http.MethodGet, "/computeMetadata/v1/instance/zone", "Metadata-Flavor", "Google")
	if err != nil {
		return CloudLocation{}, err
	}
	p := CloudLocation{Zone: path.Base(zone), Facts: map[string]string{}}
	if i := strings.LastIndexByte(p.Zone, '-'); i > 0 {
		p.Region = p.Zone[:i]
	}
	p.addFact("gcp_project", value("project/project-id"))
	p.addFact("gcp_project_number", value("project/numeric-project-id"))
	p.addFact("gcp_gke_cluster_name", value("instance/attributes/cluster-name"))
	p.addFact("gcp_gce_instance", value("instance/name"))
	p.addFact("gcp_gce_instance_id", value("instance/id"))
	location := value("instance/attributes/cluster-location")
	if location == "" {
		location = p.Zone
	}
	p.addFact("gcp_location", location)
	return p, nil
}

func (s *cloudService) locateAWS(ctx context.Context) (CloudLocation, error) {
	token, err := s.get(ctx, http.MethodPut, "/latest/api/token", "X-aws-ec2-metadata-token-ttl-seconds", "60")
	if err != nil {
		return CloudLocation{}, err
	}
	text, err := s.get(ctx, http.MethodGet, "/latest/dynamic/instance-identity/document", "X-aws-ec2-metadata-token", token)
	if err != nil {
		return CloudLocation{}, err
	}
	var document struct{ Region, AvailabilityZone, InstanceID string }
	if err := json.Unmarshal([]byte(text), &document); err != nil {
		return CloudLocation{}, fmt.Errorf("reading the instance's identity document: %w", err)
	}
	p := CloudLocation{Region: document.Region, Zone: document.AvailabilityZone, Facts: map[string]string{}}
	p.addFact("aws_region", document.Region)
	p.addFact("aws_availability_zone", document.AvailabilityZone)
	p.addFact("aws_instance_id", document.InstanceID)
	return p, nil
}

func (s *cloudService) locateAzure(ctx context.Context) (CloudLocation, error) {
	text, err := s.get(ctx, http.MethodGet, "/metadata/instance/compute?api-version=2019-08-15", "Metadata", "true")
	if err != nil {
		return CloudLocation{}, err
	}
	var compute struct {
		Name, Location, Zone, VMID string
		TagsList                   []struct{ Name, Value string }
	}
	if err := json.Unmarshal([]byte(text), &compute); err != nil {
		return CloudLocation{}, fmt.Errorf("reading the metadata of the Azure machine: %w", err)
	}
	p := CloudLocation{Region: compute.Location, Zone: compute.Zone, Facts: map[string]string{}}
	for _, tag := range compute.TagsList {
		p.addFact("azure_"+tag.Name, tag.Value)
	}
	p.addFact("azure_name", compute.Name)
	p.addFact("azure_location", compute.Location)
	p.addFact("azure_vmId", compute.VMID)
	return p, nil
}

func (p CloudLocation) addFact(name, value string) {
	if value != "" {
		p.Facts[name] = value
	}
}

// get sends a request and returns the response body. Each cloud requires its own request header, which protects against
// requests from web pages.
func (s *cloudService) get(ctx context.Context, method, path, header, value string) (string, error) {
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
	body, err := io.ReadAll(io.LimitReader(response.Body, maxCloudResponse))
	if response.StatusCode != http.StatusOK {
		err = errors.Join(err, fmt.Errorf("the response of %s has status %s", s.base+path, response.Status))
	}
	return strings.TrimSpace(string(body)), err
}
