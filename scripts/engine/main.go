// Command engine builds engine bundles and the prefixes that tests and benchmarks use. CMakeLists.txt and the
// Makefile run it; `go run ./scripts/engine help` lists what it does.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	code := run(ctx, os.Args[1:], os.Environ(), os.Stderr)
	stop()
	os.Exit(code)
}

const usage = `usage: engine COMMAND [FLAG...]

  debian    unpack Debian's llama.cpp into a bundle                (HEARTH_ENGINE=debian)
  describe  write a bundle for installed or freshly built libraries (HEARTH_ENGINE=system, source)
  prefix    unpack peers, testmesa or testrocr into a folder
  cached    look whether all packages of some sets are in the cache
  relock    resolve engine.lock against the archive as it is now
  check     read a bundle and look whether it is complete
`

// errUsage is a command line that makes no sense; the message has been printed.
var errUsage = errors.New("usage")

func run(ctx context.Context, args, env []string, stderr io.Writer) int {
	commands := map[string]func(context.Context, tool, []string) error{
		"debian": debianCommand, "describe": describeCommand, "prefix": prefixCommand, "cached": cachedCommand, "relock": relockCommand, "check": checkCommand,
	}
	if len(args) == 0 || commands[args[0]] == nil {
		fmt.Fprint(stderr, usage)
		return 2
	}
	err := commands[args[0]](ctx, tool{env: env, stderr: stderr}, args[1:])
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errUsage):
		return 2
	}
	fmt.Fprintf(stderr, "engine: %v\n", err)
	return 1
}
