package config

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pilotfish-mesh/pilotfish/bootstrap"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// metadataService is a fake of a cloud's metadata server. It rejects requests without the required header.
func metadataService(t *testing.T, header, value string, answers map[string]string) *cloudService {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, there := answers[r.Method+" "+r.URL.RequestURI()]
		switch {
		case r.Method == http.MethodPut && r.Header.Get("X-aws-ec2-metadata-token-ttl-seconds") == "":
			w.WriteHeader(http.StatusBadRequest)
		case r.Method == http.MethodGet && r.Header.Get(header) != value:
			w.WriteHeader(http.StatusForbidden)
		case !there:
			w.WriteHeader(http.StatusNotFound)
		default:
			_, _ = w.Write([]byte(answer))
		}
	}))
	t.Cleanup(s.Close)
	return &cloudService{base: s.URL, client: cloudClient()}
}

func TestLocationIsReadFromEachCloud(t *testing.T) {
	for platform, row := range map[string]struct {
		service *cloudService
		want    CloudLocation
	}{
		"gcp": {
			metadataService(t, "Metadata-Flavor", "Google", map[string]string{
				"GET /computeMetadata/v1/instance/zone":                    "projects/42/zones/europe-west1-b\n",
				"GET /computeMetadata/v1/project/project-id":               "shop",
				"GET /computeMetadata/v1/project/numeric-project-id":       "42",
				"GET /computeMetadata/v1/instance/attributes/cluster-name": "books",
				"GET /computeMetadata/v1/instance/name":                    "vm-1",
			}),
			CloudLocation{Region: "europe-west1", Zone: "europe-west1-b", Facts: map[string]string{"gcp_project": "shop", "gcp_project_number": "42",
				"gcp_gke_cluster_name": "books", "gcp_gce_instance": "vm-1", "gcp_location": "europe-west1-b"}},
		},
		"aws": {
			metadataService(t, "X-aws-ec2-metadata-token", "t0ken", map[string]string{
				"PUT /latest/api/token":                          "t0ken",
				"GET /latest/dynamic/instance-identity/document": `{"region": "eu-west-1", "availabilityZone": "eu-west-1a", "instanceId": "i-1", "other": [1]}`,
			}),
			CloudLocation{Region: "eu-west-1", Zone: "eu-west-1a", Facts: map[string]string{"aws_region": "eu-west-1",
				"aws_availability_zone": "eu-west-1a", "aws_instance_id": "i-1"}},
		},
		"azure": {
			metadataService(t, "Metadata", "true", map[string]string{
				"GET /metadata/instance/compute?api-version=2019-08-15": `{"location": "westeurope", "zone": "2", "name": "vm-1", "vmId": "v-1", "tagsList": [{"name": "team", "value": "a"}]}`,
			}),
			CloudLocation{Region: "westeurope", Zone: "2", Facts: map[string]string{"azure_location": "westeurope", "azure_name": "vm-1", "azure_vmId": "v-1", "azure_team": "a"}},
		},
	} {
		got, err := row.service.locate(t.Context(), platform)
		if err != nil {
			t.Errorf("%s: %v", platform, err)
		}
		if diff := cmp.Diff(row.want, got); diff != "" {
			t.Errorf("%s: %s", platform, diff)
		}
	}
}

func TestUnresponsiveCloudDelaysStartBriefly(t *testing.T) {
	hang := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-hang }))
	defer s.Close()
	defer close(hang)
	for _, platform := range []string{"gcp", "aws", "azure"} {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		_, err := (&cloudService{base: s.URL, client: cloudClient()}).locate(ctx, platform)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", platform, err)
		}
	}
}

func TestInvalidCloudResponseIsAnError(t *testing.T) {
	for platform, answer := range map[string]string{"aws": "<html>", "azure": `{"location": 5}`, "gcp": ""} {
		service := metadataService(t, "none", "", map[string]string{
			"PUT /latest/api/token": "x", "GET /latest/dynamic/instance-identity/document": answer,
			"GET /metadata/instance/compute?api-version=2019-08-15": answer,
		})
		if _, err := service.locate(t.Context(), platform); err == nil {
			t.Errorf("%s: the invalid response %q is accepted", platform, answer)
		}
	}
}

func TestLocalityFromLabelsThenCloud(t *testing.T) {
	asked := 0
	cloud := func(string) (CloudLocation, error) {
		asked++
		return CloudLocation{Region: "r", Zone: "z", Facts: map[string]string{"aws_region": "r"}}, nil
	}
	for name, row := range map[string]struct {
		env    []string
		labels string
		want   string
		asked  int
	}{
		"no request without CLOUD_PLATFORM": {nil, "", "/", 0},
		"none":                              {[]string{"CLOUD_PLATFORM=none"}, "", "/", 0},
		"the cloud":                         {[]string{"CLOUD_PLATFORM=aws"}, "", "r/z", 1},
		"a label wins":                      {[]string{"CLOUD_PLATFORM=aws"}, "istio-locality=\"a.b.c\"\n", "a/b", 1},
		"the newer label wins":              {nil, "istio-locality=\"a.b\"\ntopology.istio.io/locality=\"c.d\"\n", "c/d", 0},
	} {
		testenv.InDir(t, map[string]string{"etc/istio/pod/labels": row.labels})
		asked = 0
		in := env(row.env...)
		in.Cloud = cloud
		node, err := bootstrap.Node(resolve(t, in).BootstrapConfig())
		if err != nil {
			t.Fatal(err)
		}
		if got := node.GetLocality().GetRegion() + "/" + node.GetLocality().GetZone(); got != row.want || asked != row.asked {
			t.Errorf("%s: locality %q after %d requests, want %q after %d", name, got, asked, row.want, row.asked)
		}
		if row.want == "r/z" && node.GetMetadata().AsMap()["PLATFORM_METADATA"].(map[string]any)["aws_region"] != "r" {
			t.Errorf("%s: metadata %v", name, node.GetMetadata())
		}
	}
}

func TestProxyStartsWithoutMetadataServer(t *testing.T) {
	testenv.InDir(t, nil)
	in := env("CLOUD_PLATFORM=gcp")
	in.Cloud = func(string) (CloudLocation, error) { return CloudLocation{}, errors.New("no route to host") }
	c := resolve(t, in)
	if len(c.Warnings) != 1 || !strings.Contains(c.Warnings[0], "CLOUD_PLATFORM=gcp") || !strings.Contains(c.Warnings[0], "no route to host") {
		t.Errorf("warnings: %q", c.Warnings)
	}
}
