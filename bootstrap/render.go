package bootstrap

// Render writes the bootstrap for people: with the names of enumerations, and without secrets. The same configuration
// gives the same bytes.
func Render(c Config) ([]byte, error) {
	b, err := Build(c)
	if err != nil {
		return nil, err
	}
	return JSON(b)
}

// Warnings are the settings that no Envoy of today can follow, each with what to do instead.
func Warnings(c Config) []string {
	return tracingWarnings(c)
}
