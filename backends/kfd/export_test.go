package kfd

// The parsers, for the fuzz tests.

func ParseProps(b []byte) (map[string]uint64, error) { return parseProps(b) }

func ParseIDs(b []byte) map[[2]uint32]string { return parseIDs(b) }
