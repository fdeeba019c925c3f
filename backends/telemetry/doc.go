// Package telemetry reads what a GPU does now: memory, load, power, temperatures, clocks, throttling, link. It reads
// sysfs without root, with a deadline on each file, since a sensor behind hung firmware never answers.
//
// cmd makes one Sampler from the cards that backends/kfd found and runs it; server takes Latest and the Prometheus
// collector from it, and `hearth devices --watch` prints the readings. A Sampler may be used from several goroutines;
// Readings are values. Parsing is apart from reading: ParseMetrics, ParseClocks and ParseFDInfo take bytes.
package telemetry
