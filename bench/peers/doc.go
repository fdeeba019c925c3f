// Package peers measures hearth beside other OpenAI-compatible servers: it starts each of them on the same model file,
// sends each the same seeded loads in turn, several rounds interleaved, and prints ratios. Two figures are only ever
// compared when they come from one run.
//
// cmd/hearth calls it for `hearth bench peers`. It starts processes and ends only those.
package peers
