package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Environ(), os.Stdin, os.Stdout, os.Stderr))
}

// run executes one command line and returns the exit code.
func run(ctx context.Context, args, env []string, stdin io.Reader, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM)
	defer stop()
	a := newApp(env, stdin, stdout, stderr)
	root := a.root()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err != nil && ctx.Err() != nil && errors.Is(err, context.Canceled) {
		err = errInterrupted
	}
	return a.report(err)
}

// ownsInterrupt marks commands which handle Ctrl-C themselves.
const ownsInterrupt = "owns-interrupt"

// interruptible makes Ctrl-C end the command's context, unless the command handles it itself.
func interruptible(cmd *cobra.Command) (stop func()) {
	if cmd.Annotations[ownsInterrupt] != "" {
		return func() {}
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt)
	cmd.SetContext(ctx)
	return stop
}
