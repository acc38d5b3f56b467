package config

// ParseResource validates a resource that is not from a file. It formats the resource as JSON and parses the text, so
// that the rules for files apply to the resources of all sources. valid is nil if the resource is invalid. policy is not
// nil if the resource is a policy that the parser refused. source is the file name in the positions of the resource and
// the problems.
func (p Parser) ParseResource(r *Resource, source string) (valid *Resource, problems []Problem, policy *RefusedPolicy) {
	refuse := func(field, message string) []Problem {
		return []Problem{{
			Code: InvalidValue, Severity: Error, Key: r.Key, At: Position{File: source}, Field: field, Message: message, Remedy: "correct the document at the configuration source",
		}}
	}
	text, err := Encode(r)
	if err != nil { // for example a number that is infinite
		return nil, refuse("spec", "the spec cannot be converted: "+err.Error()), nil
	}
	parsed := p.ParseFile(source, text)
	problems = parsed.Problems
	for i := range problems { // users do not know the lines of the encoded text
		problems[i].At = Position{File: source}
	}
	if len(parsed.Documents) != 1 || parsed.Documents[0].Resource == nil {
		if len(problems) == 0 {
			problems = refuse("", "the document cannot be read")
		}
		if len(parsed.Policies) == 1 {
			policy = parsed.Policies[0]
		}
		return nil, problems, policy
	}
	valid = parsed.Documents[0].Resource.WithCreated(r.Created)
	valid.Origin, valid.Positions = Position{File: source}, nil
	return valid, problems, nil
}
