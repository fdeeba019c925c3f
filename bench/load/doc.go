// Package load is hearth's load generator: it sends bounded, seeded workloads to any OpenAI-compatible chat endpoint
// and reports time to first token, inter-token latency and throughput.
//
// Definitions (the same for every server that it measures):
//
//   - TTFT: request sent to first event with content. A role-only event does not count.
//   - ITL: each gap between two content events of one response.
//   - E2E: request sent to end of stream.
//   - Output tokens: usage.completion_tokens as the server reports them; content events when it reports none.
//   - Throughput: output tokens of all responses over the wall time from the first request to the last end.
//
// cmd/hearth calls it for `hearth bench load` and `hearth bench peers`. A Runner may be used from one goroutine; it
// starts one goroutine per client and waits for all of them before it returns.
package load
