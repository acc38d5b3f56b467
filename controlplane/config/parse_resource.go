package config

// ParseResource validates a resource that is not from a file. It formats the resource as JSON and parses the text, so
// that the rules for files apply to the resources of all sources. It returns nil if the resource is invalid. source is
// the file name in the positions of the resource and the problems.
func (p Parser) ParseResource(r *Resource, source string) (*Resource, []Problem) {
	refuse := func(field, message string) (*Resource, []Problem) {
		return nil, []Problem{{
			Code: InvalidValue, Severity: Error, Key: r.Key, At: Position{File: source}, Field: field, Message: message, Remedy: "correct the document at the configuration source",
		}}
	}
	text, err := Encode(r)
	if err != nil { // for example a number that is infinite
		return refuse("spec", "the spec cannot be converted: "+err.Error())
	}
	parsed := p.ParseFile(source, text)
	problems := parsed.Problems
	for i := range problems { // users do not know the lines of the encoded text
		problems[i].At = Position{File: source}
	}
	if len(parsed.Documents) != 1 || parsed.Documents[0].Resource == nil {
		if len(problems) == 0 {
			return refuse("", "the document cannot be read")
		}
		return nil, problems
	}
	valid := *parsed.Documents[0].Resource
	valid.Origin, valid.Positions, valid.Created = Position{File: source}, nil, r.Created
	return &valid, problems
}
