package config

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/go-jose/go-jose/v4"
)

// readKeySet returns the usable public keys of the JWK set data. It skips keys that cannot be parsed or used.
func readKeySet(data []byte) ([]jose.JSONWebKey, error) {
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(data, &set); err != nil {
		return nil, jsonError(err)
	}
	var out []jose.JSONWebKey
	for _, raw := range set.Keys {
		var key jose.JSONWebKey
		if key.UnmarshalJSON(raw) != nil {
			continue
		}
		if public, ok := isUsableKey(key); ok {
			out = append(out, public)
		}
	}
	if len(out) == 0 {
		return nil, errNoKeys
	}
	return out, nil
}

// jsonError replaces a JSON error, which may quote the input, by an error without the input.
func jsonError(err error) error {
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		return fmt.Errorf("JSON syntax error at byte %d", syntax.Offset)
	}
	return errors.New("the content is not a valid JWK set (RFC 7517)")
}

func marshalKeySet(keys []jose.JSONWebKey) ([]byte, error) {
	out, err := json.Marshal(jose.JSONWebKeySet{Keys: keys})
	if err != nil {
		return nil, fmt.Errorf("encoding a JWK set: %w", err)
	}
	if len(out) > MaxKeySet {
		return nil, fmt.Errorf("the keys have %d bytes; at most %d are allowed", len(out), MaxKeySet)
	}
	return out, nil
}
