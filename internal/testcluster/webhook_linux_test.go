package testcluster

import (
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"testing"
)

// serveWebhook serves an admission webhook that answers each request with a JSON patch. It returns its URL and its root
// certificate.
func serveWebhook(t *testing.T, patch string) (url string, roots []byte) {
	t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review Object
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(Object{
			"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
			"response": Object{"uid": review.Get("request", "uid"), "allowed": true, "patchType": "JSONPatch", "patch": []byte(patch)},
		})
	}))
	t.Cleanup(server.Close)
	return server.URL + "/inject", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
}
