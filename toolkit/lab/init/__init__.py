"""`toolkit init`: from a file to a YAML that trains. Every setting is a guess with its reason."""
