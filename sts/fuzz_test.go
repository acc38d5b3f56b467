package sts

import (
	"encoding/json"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// FuzzParseRequest: every accepted request satisfies the checks, in each encoding.
func FuzzParseRequest(f *testing.F) {
	f.Add(formType, form(f))
	f.Add(formType+"; charset=utf-8", form(f, "scope", "a b", "actor_token", "x", "actor_token_type", JWTType)+"&audience=a&audience=b&resource=https%3A%2F%2Fa")
	f.Add(formType, "grant_type="+GrantType+"&subject_token=a.b.c&subject_token_type="+JWTType)
	f.Add(formType, "a=%zz&b;c&=&&%00=%ff")
	object, _ := json.Marshal(map[string]any{"grant_type": GrantType, "subject_token": "a", "subject_token_type": JWTType, "audience": []string{"a", "b"}, "scope": nil})
	f.Add(jsonType, string(object))
	f.Add(jsonType, `{"a":{},"a":[1]}`)
	f.Add("text/plain; charset=\"", "")
	f.Fuzz(func(t *testing.T, contentType, body string) {
		r, err := parseRequest(contentType, []byte(body))
		if err != nil {
			refusal, ok := err.(*Error)
			if !ok || refusal.Status < 400 || refusal.Code == "" || refusal.Description == "" {
				t.Fatalf("the error is not an *Error: %#v", err)
			}
			return
		}
		if r.Subject == "" || r.SubjectType != JWTType || (r.Actor == "") != (r.ActorType == "") {
			t.Fatalf("accepted: %+v", r)
		}
		for _, value := range append(slices.Concat(r.Resources, r.Audiences), r.Scope, r.RequestedType, r.ActorType) {
			if !utf8.ValidString(value) || (value == "" && !slices.Contains([]string{r.Scope, r.RequestedType, r.ActorType}, "")) {
				t.Fatalf("accepted: %q", value)
			}
		}
		again, err := parseRequest(formType, []byte(r.form().Encode()))
		if err != nil || again.key() != r.key() {
			t.Fatalf("encoding and parsing the request changed it: %+v, %v", again, err)
		}
	})
}

func FuzzParseClaims(f *testing.F) {
	f.Add(workloadToken(f))
	f.Add(rawJWT(f, map[string]any{"alg": "none"}, map[string]any{"exp": 1}))
	f.Add(rawJWT(f, map[string]any{"alg": "ES256"}, map[string]any{"exp": 1.5, "aud": "a", "nbf": -1}))
	f.Add("..")
	f.Add("e30.e30.e30")
	f.Fuzz(func(t *testing.T, token string) {
		c, err := parseClaims(token)
		if err != nil {
			if strings.Contains(err.Error(), token) && len(token) > 3 {
				t.Fatalf("the error contains the token: %v", err)
			}
			return
		}
		if c.expires.Year() > 9999 || c.notBefore.Year() > 9999 || strings.Count(token, ".") != 2 || strings.ContainsAny(token, " \r\n") {
			t.Fatalf("accepted: %q as %+v", token, c)
		}
		_, _ = Check{Issuers: []string{"a"}, Audiences: []string{"b"}}.verify(Secret(token), time.Unix(0, 0))
	})
}

func FuzzParseToken(f *testing.F) {
	f.Add([]byte(goodAnswer))
	f.Add([]byte(`{"access_token":"a","token_type":"Bearer","expires_in":"1e400"}`))
	f.Add([]byte(`{"error":"invalid_grant","error_description":"\u0000\"\\"}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		if token, err := parseToken(body, noon); err == nil && (!isCredential(token.Access) || token.Type == "" || token.IssuedType == "" ||
			(!token.Expires.IsZero() && (token.Expires.Before(noon) || token.Expires.After(noon.Add(maxLifetime))))) {
			t.Fatalf("accepted: %+v of %s", token, body)
		}
		for _, status := range []int{200, 400, 500} {
			_, err := reply{status: status, body: body}.token("x", noon)
			if err != nil && strings.ContainsAny(err.Error(), "\r\n") {
				t.Fatalf("the token contains a line end: %q", err)
			}
		}
	})
}

func FuzzPresentable(f *testing.F) {
	f.Add("a \"quoted\" \\ line\r\nand " + url.QueryEscape("ü"))
	f.Fuzz(func(t *testing.T, text string) {
		got := presentable(text)
		if len(got) > maxDescription+3 || strings.ContainsFunc(got, func(r rune) bool { return r < ' ' || r > '~' || r == '"' || r == '\\' }) {
			t.Fatalf("%q became %q", text, got)
		}
	})
}
