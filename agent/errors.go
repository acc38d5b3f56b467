package agent

// ConfigError reports a configuration with which the agent cannot run. A retry would fail too.
type ConfigError struct{ error }

// Unwrap returns the cause.
func (e ConfigError) Unwrap() error { return e.error }
