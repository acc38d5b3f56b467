package sts

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"
)

// maxBody limits the body of a request, in bytes.
const maxBody = 64 << 10

const (
	formType = "application/x-www-form-urlencoded"
	jsonType = "application/json"
)

// parameters are the received parameters of a request, by name.
type parameters map[string][]string

// repeatable are the parameters that may occur more than once.
var repeatable = []string{"audience", "resource"}

// readRequest parses and checks a token request. It does not check the content of the tokens.
func readRequest(w http.ResponseWriter, r *http.Request) (Request, error) {
	if r.URL.RawQuery != "" {
		return Request{}, invalid("send the parameters in the body: URLs are often logged")
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return Request{}, invalid("the body is longer than %d bytes", tooLarge.Limit).withStatus(http.StatusRequestEntityTooLarge)
	}
	if err != nil {
		return Request{}, invalid("the body was not received completely")
	}
	return parseRequest(r.Header.Get("Content-Type"), body)
}

func parseRequest(contentType string, body []byte) (Request, error) {
	p, err := parseBody(contentType, body)
	if err != nil {
		return Request{}, err
	}
	if err := p.check(); err != nil {
		return Request{}, err
	}
	request := Request{
		Subject:       Secret(strings.TrimSpace(p.get("subject_token"))),
		SubjectType:   p.get("subject_token_type"),
		Actor:         Secret(strings.TrimSpace(p.get("actor_token"))),
		ActorType:     p.get("actor_token_type"),
		Resources:     p["resource"],
		Audiences:     p["audience"],
		Scope:         p.get("scope"),
		RequestedType: p.get("requested_token_type"),
	}
	return request, request.check(p.get("grant_type"))
}

func parseBody(contentType string, body []byte) (parameters, error) {
	media, options, err := mime.ParseMediaType(contentType)
	if charset := options["charset"]; err != nil || (charset != "" && !strings.EqualFold(charset, "utf-8")) {
		media = ""
	}
	switch media {
	case formType:
		values, err := url.ParseQuery(string(body))
		if err != nil { // err is not returned, because it quotes the body
			return nil, invalid("the body is not a valid form")
		}
		return parameters(values), nil
	case jsonType:
		return parseObject(body)
	}
	return nil, invalid("send the parameters with the content type %s", formType).withStatus(http.StatusUnsupportedMediaType)
}

// parseObject parses parameters that are sent as a JSON object of strings, as grpc-go's STS credentials do.
func parseObject(body []byte) (parameters, error) {
	p := make(parameters)
	err := eachMember(body, func(name string, value json.RawMessage) error {
		var one string
		var several []string
		if json.Unmarshal(value, &one) == nil {
			several = []string{one}
		} else if json.Unmarshal(value, &several) != nil {
			return errors.New("a value is not a string")
		}
		p[name] = append(p[name], several...)
		return nil
	})
	if err != nil {
		return nil, invalid("the body is not a valid JSON object of strings")
	}
	return p, nil
}

// eachMember calls visit for each member of a JSON object. Unlike encoding/json, it distinguishes upper and lower case
// in names, and rejects repeated names. Otherwise another parser of the same object could use a different value than
// the one that was checked here.
func eachMember(object []byte, visit func(name string, value json.RawMessage) error) error {
	decoder := json.NewDecoder(bytes.NewReader(object))
	if start, err := decoder.Token(); err != nil || start != json.Delim('{') {
		return errors.New("not an object")
	}
	seen := make(map[string]bool)
	for decoder.More() {
		token, err := decoder.Token()
		if err != nil {
			return err
		}
		name, _ := token.(string)
		var value json.RawMessage
		if err := decoder.Decode(&value); err != nil {
			return err
		}
		if seen[name] {
			return errors.New("a name is repeated")
		}
		seen[name] = true
		if err := visit(name, value); err != nil {
			return err
		}
	}
	if _, err := decoder.Token(); err != nil {
		return err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return errors.New("there is content after the object")
	}
	return nil
}

// check returns an error if a parameter is not UTF-8, or is repeated and not in repeatable (RFC 6749 section 3.2). It
// removes empty parameters, which are equivalent to missing ones.
func (p parameters) check() error {
	for name, values := range p {
		if len(values) > 1 && !slices.Contains(repeatable, name) {
			return invalid("the parameter %s is repeated", presentable(name))
		}
		for _, value := range values {
			if !utf8.ValidString(value) {
				return invalid("the parameter %s is not UTF-8", presentable(name))
			}
		}
		p[name] = slices.DeleteFunc(values, func(v string) bool { return v == "" })
	}
	return nil
}

func (p parameters) get(name string) string {
	if len(p[name]) == 0 {
		return ""
	}
	return p[name][0]
}

func (r Request) check(grant string) error {
	switch {
	case grant == "":
		return invalid("grant_type is missing")
	case grant != GrantType:
		return refuse(CodeUnsupportedGrantType, "grant_type must be %s", GrantType)
	case r.Subject == "":
		return invalid("subject_token is missing")
	case r.SubjectType == "":
		return invalid("subject_token_type is missing")
	case r.SubjectType != JWTType:
		return invalid("subject_token_type must be %s", JWTType)
	case r.Actor != "" && r.ActorType == "":
		return invalid("actor_token_type is missing, although there is an actor_token")
	case r.Actor == "" && r.ActorType != "":
		return invalid("actor_token is missing, although there is an actor_token_type")
	}
	if err := checkScope(r.Scope); err != nil {
		return err
	}
	return checkResources(r.Resources)
}

// checkScope returns an error unless scope consists of words that are separated by single spaces. A word contains
// visible ASCII characters except double quotes and backslashes (RFC 6749 section 3.3).
func checkScope(scope string) error {
	if scope == "" {
		return nil
	}
	for word := range strings.SplitSeq(scope, " ") {
		if word == "" || strings.ContainsFunc(word, func(r rune) bool { return r <= ' ' || r > '~' || r == '"' || r == '\\' }) {
			return refuse(CodeInvalidScope, "scope must consist of words that are separated by single spaces")
		}
	}
	return nil
}

// checkResources returns an error unless all resources are absolute URIs without a fragment (RFC 8693 section 2.1).
func checkResources(resources []string) error {
	for _, resource := range resources {
		u, err := url.Parse(resource)
		if err != nil || !u.IsAbs() || strings.Contains(resource, "#") {
			return refuse(CodeInvalidTarget, "resource must be an absolute URI without a fragment")
		}
	}
	return nil
}
