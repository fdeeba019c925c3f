package main

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"hearth/configs"
	"hearth/models"
	"hearth/models/hub"
)

// app is one invocation of the command line.
type app struct {
	env            configs.Environ
	in             io.Reader
	out, err       io.Writer
	now            func() time.Time
	configFile     string
	json           bool
	stopInterrupts func()
}

func newApp(env []string, in io.Reader, out, err io.Writer) *app {
	return &app{env: env, in: in, out: out, err: err, now: time.Now, stopInterrupts: func() {}}
}

const exitCodes = `Exit codes: 0 done, 1 failed, 2 wrong usage or configuration, 3 no such model, file or device,
4 no server there or not ready, 130 interrupted.`

func (a *app) root() *cobra.Command {
	c := &cobra.Command{
		Use:   "hearth",
		Short: "local LLM inference for AMD GPUs",
		Long: "hearth serves language models from this machine behind an OpenAI-compatible endpoint.\n" +
			"llama.cpp computes, through HIP, Vulkan or on the CPU.\n\n" + exitCodes,
		SilenceErrors: true,
		SilenceUsage:  true,
		PersistentPreRun: func(cmd *cobra.Command, _ []string) {
			a.stopInterrupts = interruptible(cmd)
		},
		PersistentPostRun: func(*cobra.Command, []string) { a.stopInterrupts() },
	}
	c.SetIn(a.in)
	c.SetOut(a.out)
	c.SetErr(a.err)
	c.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return &usageError{err.Error(), "hearth " + commandPath(cmd) + "--help lists the flags"}
	})
	c.CompletionOptions.HiddenDefaultCmd = false
	pf := c.PersistentFlags()
	pf.StringVar(&a.configFile, "config", "", "configuration file (default: the user's, then /etc/hearth/config.yaml)")
	configs.AddFlags(pf, "log.", "dirs.", "client.")
	c.AddGroup(
		&cobra.Group{ID: "use", Title: "Use models:"},
		&cobra.Group{ID: "keep", Title: "Keep models:"},
		&cobra.Group{ID: "look", Title: "Look at this machine:"},
	)
	for group, list := range map[string][]*cobra.Command{
		"use":  {a.serveCmd(), a.runCmd(), a.psCmd(), a.stopCmd()},
		"keep": {a.pullCmd(), a.listCmd(), a.showCmd(), a.rmCmd(), a.cpCmd()},
		"look": {a.devicesCmd(), a.doctorCmd(), a.benchCmd(), a.engineCmd(), a.configCmd(), a.versionCmd()},
	} {
		for _, sub := range list {
			sub.GroupID = group
			c.AddCommand(sub)
		}
	}
	return c
}

// commandPath is the path below "hearth", with a space behind it; empty for the root.
func commandPath(cmd *cobra.Command) string {
	if !cmd.HasParent() {
		return ""
	}
	return commandPath(cmd.Parent()) + cmd.Name() + " "
}

// args wraps cobra's argument checks so that a wrong number of arguments is a usage error with the usage line.
func args(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, a []string) error {
		if err := check(cmd, a); err != nil {
			return &usageError{err.Error(), "usage: " + cmd.UseLine()}
		}
		return nil
	}
}

// jsonFlag adds --json to a command that reads.
func (a *app) jsonFlag(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().BoolVar(&a.json, "json", false, "print JSON")
	return cmd
}

// config loads the settings with the flags of cmd.
func (a *app) config(cmd *cobra.Command) (*configs.Config, error) {
	return configs.Load(configs.Options{Env: a.env, Flags: cmd.Flags(), File: a.configFile, UID: os.Getuid()})
}

func (a *app) logger(c *configs.Config) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.Log.Level)); err != nil {
		level = slog.LevelInfo // Validate has checked it
	}
	o := &slog.HandlerOptions{Level: level}
	if c.Log.Format == "json" {
		return slog.New(slog.NewJSONHandler(a.err, o))
	}
	return slog.New(slog.NewTextHandler(a.err, o))
}

// store opens the model store. Manifests that cannot be read are reported when they are met.
func (a *app) store(c *configs.Config) (*models.Store, error) {
	return models.Open(c.Dirs.Models, a.now)
}

func (a *app) hub(c *configs.Config) (*hub.Hub, error) {
	return hub.New(hub.Config{
		CacheDir: c.Dirs.Cache, Endpoint: c.Hub.Endpoint, Token: c.Hub.Token, Python: c.Hub.Python, Env: a.env,
		Offline: c.Hub.Offline, AllowSdist: c.Hub.AllowSdist, UserAgent: "hearth/" + version(),
	})
}

// printJSON writes v indented, with a line end.
func (a *app) printJSON(v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("encode output: %w", err)
	}
	_, err = a.out.Write(append(b, '\n'))
	return err
}

func (a *app) printf(format string, v ...any) { fmt.Fprintf(a.out, format, v...) }

func (a *app) notef(format string, v ...any) { fmt.Fprintf(a.err, format, v...) }

// terminal says whether the stream is one. Only files can be; /dev/null, though a character device, is none.
func terminal(stream any) bool {
	f, ok := stream.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}
