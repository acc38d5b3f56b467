package agent

import (
	"context"

	"github.com/pilotfish-mesh/pilotfish/wasm"
	"github.com/pilotfish-mesh/pilotfish/xdsproxy"
)

// newWasmModules returns the module cache; nil if Envoy fetches its Wasm modules itself.
func (a *Agent) newWasmModules() (*wasm.Modules, error) {
	c := a.Config.Wasm
	if c == nil {
		return nil, nil
	}
	retries := c.Retries
	if retries == 0 {
		retries = -1
	}
	return wasm.New(wasm.Config{
		Dir:           c.Dir,
		Owner:         a.Config.Envoy.User,
		Expiry:        c.Expiry,
		PurgeInterval: c.PurgeInterval,
		Timeout:       c.Timeout,
		Retries:       retries,
		RetryInterval: c.RetryInterval,
		MaxSize:       c.MaxSize,
		Insecure:      c.Insecure,
		Blocked:       c.Blocked,
		Logger:        a.Logger.With("part", "wasm"),
		Metrics:       a.metrics,
	})
}

// rewriters returns, by resource type, the functions that change resources before Envoy receives them.
func (a *Agent) rewriters() map[string]xdsproxy.Rewriter {
	if a.wasm == nil {
		return nil
	}
	return map[string]xdsproxy.Rewriter{wasm.ExtensionConfigType: func(ctx context.Context, resources []xdsproxy.Resource) ([]xdsproxy.Resource, error) {
		return resources, rewriteValues(ctx, a.wasm, resources)
	}}
}

// rewriteValues changes the resources in place. It leaves resources of another type unchanged, and Envoy rejects them.
func rewriteValues(ctx context.Context, modules *wasm.Modules, resources []xdsproxy.Resource) error {
	var places []int
	var values [][]byte
	for i, r := range resources {
		if r.Type == wasm.ExtensionConfigType {
			places, values = append(places, i), append(values, r.Value)
		}
	}
	again, err := modules.Rewrite(ctx, values)
	if err != nil {
		return err
	}
	for i, place := range places {
		resources[place].Value, resources[place].Retry = values[i], again[i]
	}
	return nil
}
