// Package ceiling measures how close the whole server comes to the raw llama.cpp loop on the same machine in the same
// run: rounds of `hearth-engine bench` (llama_decode in a loop, nothing else) alternate with rounds of requests over
// HTTP. The raw figure of a load is the better one of the KV layouts that were asked for.
//
// cmd/hearth calls it for `hearth bench ceiling` (make bench). It starts processes and ends only those.
package ceiling
