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

// KeyProvider has Envoy use private keys by an accelerator. It is one of Envoy's contributed extensions, which its own
// releases do not have.
type KeyProvider struct {
	// Name is cryptomb or qat.
	Name string
	// PollDelay is how long the accelerator waits for more work.
	PollDelay time.Duration
	// Fallback has Envoy use the key itself where there is no accelerator.
	Fallback bool
}

var providerTypes = map[string]string{
	"cryptomb": "type.googleapis.com/envoy.extensions.private_key_providers.cryptomb.v3alpha.CryptoMbPrivateKeyMethodConfig",
	"qat":      "type.googleapis.com/envoy.extensions.private_key_providers.qat.v3alpha.QatPrivateKeyMethodConfig",
}

func (p *KeyProvider) check() error {
	if p != nil && providerTypes[p.Name] == "" {
		return fmt.Errorf("sds: the private key provider %q is neither cryptomb nor qat", p.Name)
	}
	return nil
}

// The fields of either type: the key, and the delay.
const (
	providerKey   = 1
	providerDelay = 2
)

// of wraps a key for the accelerator. The message is written field by field: its Go type is in a module of the contributed
// extensions, which is large.
func (p *KeyProvider) of(key PrivateKey) (*tlsv3.PrivateKeyProvider, error) {
	source, err := proto.Marshal(inline(key))
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
