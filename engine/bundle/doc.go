// Package bundle reads engine bundles: the folders, written by CMakeLists.txt, that hold llama.cpp, its backend
// plugins and everything below them down to libc, with a manifest (engine.json) that says what is inside.
//
// The supervisor and the CLI load a bundle and ask it for the command that starts one of its binaries; the build
// tool (scripts/engine) writes manifests with the same types. Nothing here opens a library or starts a process.
//
// A Bundle is a value that is never changed after Load; it may be read from any goroutine.
package bundle
