// Package configs holds hearth's settings: what there is to set, the defaults, and where a value came from.
//
// A value is taken from the first of: command line flag, environment variable, configuration file, default. The table
// of settings is the Config struct itself; its tags name the key in the file, the flag, the variables and the default,
// and the example file, the JSON schema and the command line help are generated from them.
//
// Only cmd/hearth imports this package; it hands plain structs to the others. This is the only package that knows
// environment variables, and it takes them as an argument. A loaded Config is read-only and safe for concurrent use.
package configs
