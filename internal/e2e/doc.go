// Package e2e holds the end-to-end tests: the real bin/hearth with a real worker on SmolLM2, over real HTTP. `make test`
// runs them after it has built both binaries and the engine bundle; a plain `go test` without HEARTH_E2E skips them.
//
// The package has no code of its own besides the tests. Each test starts its own server on a free loopback port and
// ends it; nothing listens elsewhere.
package e2e
