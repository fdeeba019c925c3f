package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"

	"hearth/engine/bundle"
	"hearth/engine/llama"
	"hearth/engine/worker/native"
)

// Exit codes beside those of enginepb.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 64 // sysexits.h EX_USAGE; 2 is what a Go crash exits with
)

const usage = `usage: hearth-engine COMMAND [flags]

  serve    run one model behind a unix socket (started by hearth)
  bench    measure the raw llama.cpp loops: the denominators of hearth's benchmarks
  devices  list the devices of a plugin as JSON, one line each
  version  print the versions of llama.cpp and ggml

hearth-engine COMMAND -h lists the flags.
`

// run is the whole program: args[0] is its name, output goes to the writers, the result is the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) < 2 {
		fmt.Fprint(stderr, usage)
		return exitUsage
	}
	commands := map[string]func(context.Context, *invocation) int{
		"serve": serve, "bench": runBench, "devices": devices, "version": version,
	}
	cmd, ok := commands[args[1]]
	if !ok {
		fmt.Fprintf(stderr, "hearth-engine: no command %q\n%s", args[1], usage)
		return exitUsage
	}
	return cmd(ctx, &invocation{name: args[0], args: args[2:], stdout: stdout, stderr: stderr})
}

// invocation is one call of a subcommand.
type invocation struct {
	name           string // of the program, by which the bundle is found
	args           []string
	stdout, stderr io.Writer
}

// parse reads the flags; on failure the exit code is not exitOK or, for -h, done is true.
func (in *invocation) parse(fs *flag.FlagSet) (code int, done bool) {
	fs.SetOutput(in.stderr)
	switch err := fs.Parse(in.args); {
	case errors.Is(err, flag.ErrHelp):
		return exitOK, true
	case err != nil:
		return exitUsage, true
	case fs.NArg() > 0:
		fmt.Fprintf(in.stderr, "hearth-engine: unexpected argument %q\n", fs.Arg(0))
		return exitUsage, true
	}
	return exitOK, false
}

// fail prints an error and is the exit code.
func (in *invocation) fail(err error) int {
	fmt.Fprintf(in.stderr, "hearth-engine: %v\n", err)
	return exitFailed
}

// logger writes text records of at least level to stderr.
func (in *invocation) logger(level string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("log level %q: use debug, info, warn or error", level)
	}
	return slog.New(slog.NewTextHandler(in.stderr, &slog.HandlerOptions{Level: l})), nil
}

// opener is the native model loader with the plugins of a bundle; dir "" is the bundle that this binary lies in.
func (in *invocation) opener(dir string, log *slog.Logger) (*native.Opener, error) {
	if dir == "" {
		dir = filepath.Dir(filepath.Dir(in.name))
	}
	b, err := bundle.Load(dir)
	if err != nil {
		return nil, err
	}
	o := &native.Opener{GPUPlugins: map[string]string{}, Log: log}
	for _, p := range b.PluginsOf(bundle.KindCPU) {
		o.CPUPlugins = append(o.CPUPlugins, p.Path)
	}
	for kind, backend := range map[bundle.Kind]string{bundle.KindVulkan: "vulkan", bundle.KindHIP: "hip"} {
		if ps := b.PluginsOf(kind); len(ps) > 0 {
			o.GPUPlugins[backend] = ps[0].Path
		}
	}
	if ps := b.PluginsOf(bundle.KindBLAS); len(ps) > 0 {
		o.BLASPlugin = ps[0].Path
	}
	if len(o.CPUPlugins) == 0 {
		return nil, fmt.Errorf("the engine bundle %s has no CPU plugin", b.Dir)
	}
	return o, nil
}

func version(_ context.Context, in *invocation) int {
	fs := flag.NewFlagSet("version", flag.ContinueOnError)
	if code, done := in.parse(fs); done {
		return code
	}
	l, g := llama.Version()
	fmt.Fprintf(in.stdout, "llama.cpp %s, ggml %s\n", l, g)
	return exitOK
}
