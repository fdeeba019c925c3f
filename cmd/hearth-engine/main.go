// Command hearth-engine runs one model on llama.cpp. hearth starts it, one process for each loaded model; people use its
// bench, devices and version subcommands.
//
// The binary belongs to an engine bundle and is started through the bundle's loader (build/engine/run does it), which
// is why it is told where the bundle is, or looks beside its own name: under a loader /proc/self/exe is the loader.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}
