// Package layout writes engine bundles: it gathers libraries, plugins, headers and drivers from unpacked packages, an
// installed llama.cpp or a finished build into the folder shape that engine/bundle reads, with the pkg-config file
// that cgo links by and the script that tests run through.
//
// scripts/engine is its only caller; everything runs in one goroutine.
package layout
