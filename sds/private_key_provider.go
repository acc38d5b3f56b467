package sds

import (
	"fmt"
	"time"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
)

// KeyProvider configures Envoy to run private key operations on an accelerator. Envoy needs a contrib extension for
// this, which Envoy's standard releases do not contain.
type KeyProvider struct {
	// Name is cryptomb or qat.
	Name string
	// PollDelay is how long the accelerator waits for more operations to process in one batch.
	PollDelay time.Duration
	// Fallback makes Envoy use the key in software if the accelerator is not available.
	Fallback bool
}

var providerTypes = map[string]string{
	"cryptomb": "type.googleapis.com/envoy.extensions.private_key_providers.cryptomb.v3alpha.CryptoMbPrivateKeyMethodConfig",
	"qat":      "type.googleapis.com/envoy.extensions.private_key_providers.qat.v3alpha.QatPrivateKeyMethodConfig",
}

func (p *KeyProvider) check() error {
	if p != nil && providerTypes[p.Name] == "" {
		return fmt.Errorf("sds: the private key provider %q is not supported: use cryptomb or qat", p.Name)
	}
	return nil
}

// Field numbers that are the same in all messages of providerTypes.
const (
	providerKey   = 1
	providerDelay = 2
)

// wrapKey returns the provider configuration for a key. It encodes the message by hand, because its Go type is in the
// large module of Envoy's contrib extensions.
func (p *KeyProvider) wrapKey(key PrivateKey) (*tlsv3.PrivateKeyProvider, error) {
	source, err := proto.Marshal(inlineBytes(key))
	if err != nil {
		return nil, err
	}
	delay, err := proto.Marshal(durationpb.New(p.PollDelay))
	if err != nil {
		return nil, err
	}
	value := protowire.AppendBytes(protowire.AppendTag(nil, providerKey, protowire.BytesType), source)
	value = protowire.AppendBytes(protowire.AppendTag(value, providerDelay, protowire.BytesType), delay)
	return &tlsv3.PrivateKeyProvider{
		ProviderName: p.Name,
		ConfigType:   &tlsv3.PrivateKeyProvider_TypedConfig{TypedConfig: &anypb.Any{TypeUrl: providerTypes[p.Name], Value: value}},
		Fallback:     p.Fallback,
	}, nil
}
