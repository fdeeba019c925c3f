// Command hearth is the local inference server and its command line: it keeps models, serves them, and talks to them.
//
// main only hands the process's arguments, environment and streams to run, which tests call too. An app holds what one
// invocation needs; each subcommand lives in a file of its name. This package wires: it alone knows configs, the model
// store, the worker pool and the HTTP server at the same time. Nothing here is called from another package; an app
// belongs to one goroutine except where a comment says otherwise.
package main
