package agent

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// unsignedToken returns a token in the format of a service account's token. The agent does not verify its signature.
func unsignedToken(subject, id string) string {
	claims := fmt.Sprintf(`{"iss":"https://issuer.example","sub":%q,"jti":%q,"aud":["any"],"exp":%d}`, subject, id, time.Now().Add(time.Hour).Unix())
	encode := base64.RawURLEncoding.EncodeToString
	return encode([]byte(`{"alg":"RS256"}`)) + "." + encode([]byte(claims)) + "." + encode([]byte("signature"))
}

func TestTokensAreExchanged(t *testing.T) {
	t.Parallel()
	var exchanges atomic.Int32
	var broken atomic.Bool
	exchange := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if broken.Load() {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		_, _ = fmt.Fprintf(w, `{"access_token":"access-%d","token_type":"Bearer","expires_in":3600}`, exchanges.Add(1))
	}))
	defer exchange.Close()
	s := newSetup(t, "127.118.1.1")
	own := unsignedToken("system:serviceaccount:books:shop", "1")
	s.write(t, "var/run/secrets/tokens/istio-token", own)
	s.env = append(s.env, "TOKEN_EXCHANGE_URL="+exchange.URL+"/token", "DISABLE_ENVOY=true")
	s.args = append(s.args, "--stsPort", "15464", "--tokenManagerPlugin", "GoogleTokenExchange")
	r := s.start(t)
	post := func(token string) (status int, access string, err error) {
		response, err := http.PostForm("http://"+s.address+":15464/token", url.Values{
			"grant_type":    {"urn:ietf:params:oauth:grant-type:token-exchange"},
			"subject_token": {token}, "subject_token_type": {"urn:ietf:params:oauth:token-type:jwt"},
		})
		if err != nil {
			return 0, "", err
		}
		defer func() { _ = response.Body.Close() }()
		var answer struct {
			AccessToken string `json:"access_token"`
		}
		err = json.NewDecoder(response.Body).Decode(&answer)
		return response.StatusCode, answer.AccessToken, err
	}
	r.eventually("a token is exchanged", func() error {
		status, access, err := post(own)
		if err == nil && (status != http.StatusOK || access != "access-1") {
			err = fmt.Errorf("status %d, token %q", status, access)
		}
		return err
	})
	if status, _, err := post(unsignedToken("system:serviceaccount:books:other", "1")); err != nil || status != http.StatusBadRequest {
		t.Errorf("another account's token: %d, %v", status, err)
	}
	broken.Store(true)
	if status, _, err := post(unsignedToken("system:serviceaccount:books:shop", "2")); err != nil || status != http.StatusInternalServerError {
		t.Errorf("with a broken exchange server: %d, %v", status, err)
	}
	if _, body, err := r.http("GET", "15020/healthz/ready?format=json"); err != nil || !strings.Contains(body, "token exchanges fail") {
		t.Errorf("readiness does not report it: %s, %v", body, err)
	}
	if _, body, err := r.http("GET", "15020/metrics"); err != nil || !strings.Contains(body, `pilotfish_sts_requests_total{result="granted"}`) {
		t.Errorf("the metrics do not count it: %v", err)
	}
	r.signal(syscall.SIGTERM)
	r.expectExit(0)
	if exchanges.Load() != 1 || strings.Contains(r.out.String(), "eyJ") {
		t.Errorf("%d exchanges; output:\n%s", exchanges.Load(), r.out)
	}
	r.checkNothingLeft()
}
