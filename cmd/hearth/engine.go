package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/renameio/v2"
	"github.com/spf13/cobra"

	"hearth/configs"
	"hearth/engine/bundle"
)

// engineDirs are the folders that may hold bundles, in order.
func (a *app) engineDirs(cfg *configs.Config) []string {
	if cfg.Engine.Dir != "" {
		return []string{cfg.Engine.Dir}
	}
	var dirs []string
	if exe, err := os.Executable(); err == nil {
		if real, err := filepath.EvalSymlinks(exe); err == nil {
			exe = real
		}
		up := filepath.Dir(filepath.Dir(exe))
		dirs = append(dirs, filepath.Join(up, "build", "engine"), filepath.Join(up, "lib", "hearth", "engine"))
	}
	// The store lies in the data folder; a bundle that a person installed lies beside it.
	return append(dirs, filepath.Join(filepath.Dir(cfg.Dirs.Models), "engine"), "/usr/lib/hearth/engine")
}

// bundles lists the bundles of every folder; the first of a name wins.
func (a *app) bundles(cfg *configs.Config) ([]bundle.Bundle, error) {
	var all []bundle.Bundle
	var problems []error
	seen := map[string]bool{}
	for _, dir := range a.engineDirs(cfg) {
		found, err := bundle.List(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			problems = append(problems, err)
		}
		for _, b := range found {
			if !seen[b.Name] {
				seen[b.Name] = true
				all = append(all, b)
			}
		}
	}
	return all, errors.Join(problems...)
}

// chosenFile keeps the name given to `hearth engine use`.
func chosenFile(cfg *configs.Config) string { return filepath.Join(cfg.Dirs.State, "engine-bundle") }

// chosen is the name of the bundle to use.
func chosen(cfg *configs.Config) string {
	if cfg.Engine.Bundle != "" {
		return cfg.Engine.Bundle
	}
	if b, err := os.ReadFile(chosenFile(cfg)); err == nil && strings.TrimSpace(string(b)) != "" {
		return strings.TrimSpace(string(b))
	}
	return "default"
}

// bundle is the engine bundle in use.
func (a *app) bundle(cfg *configs.Config) (bundle.Bundle, error) {
	name := chosen(cfg)
	all, problems := a.bundles(cfg)
	for _, b := range all {
		if b.Name == name {
			return b, nil
		}
	}
	if problems != nil {
		return bundle.Bundle{}, problems
	}
	if len(all) == 0 {
		return bundle.Bundle{}, &hintedError{
			fmt.Errorf("no engine bundle in %s", strings.Join(a.engineDirs(cfg), ", ")),
			"make engine builds one in a checkout; HEARTH_ENGINE_DIR names another folder", exitNotFound,
		}
	}
	return bundle.Bundle{}, &hintedError{fmt.Errorf("no engine bundle is named %q", name), "hearth engine list shows them, hearth engine use NAME chooses", exitNotFound}
}

func (a *app) engineCmd() *cobra.Command {
	c := &cobra.Command{
		Use:   "engine",
		Short: "list and choose engine bundles (builds of llama.cpp)",
		Args:  args(cobra.NoArgs),
	}
	c.AddCommand(a.engineListCmd(), a.engineUseCmd(), a.engineInfoCmd())
	return c
}

func (a *app) engineListCmd() *cobra.Command {
	c := a.jsonFlag(&cobra.Command{
		Use:   "list",
		Short: "list the engine bundles",
		Args:  args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := a.config(cmd)
			if err != nil {
				return err
			}
			all, problems := a.bundles(cfg)
			if problems != nil {
				a.notef("hearth: %s\n", oneLine(problems.Error()))
			}
			type row struct {
				Name     string        `json:"name"`
				InUse    bool          `json:"in_use"`
				Llama    string        `json:"llama_version"`
				GGML     string        `json:"ggml_version"`
				Source   bundle.Source `json:"source"`
				Backends []string      `json:"backends"`
				Dir      string        `json:"dir"`
			}
			rows, text := []row{}, [][]string{{"", "NAME", "LLAMA.CPP", "GGML", "SOURCE", "BACKENDS", "FOLDER"}}
			for _, b := range all {
				r := row{b.Name, b.Name == chosen(cfg), b.LlamaVersion, b.GGMLVersion, b.Source, backendsOf(b), b.Dir}
				mark := ""
				if r.InUse {
					mark = "*"
				}
				rows = append(rows, r)
				text = append(text, []string{mark, r.Name, r.Llama, r.GGML, string(r.Source), strings.Join(r.Backends, " "), r.Dir})
			}
			if a.json {
				return a.printJSON(map[string]any{"engines": rows})
			}
			table(a.out, text)
			return nil
		},
	})
	configs.AddFlags(c.Flags(), "engine.")
	return c
}

// backendsOf lists the kinds of plugin that hearth can use.
func backendsOf(b bundle.Bundle) []string {
	var out []string
	for _, k := range []bundle.Kind{bundle.KindHIP, bundle.KindVulkan, bundle.KindCPU} {
		if len(b.PluginsOf(k)) > 0 {
			out = append(out, string(k))
		}
	}
	return out
}

func (a *app) engineUseCmd() *cobra.Command {
	c := &cobra.Command{
		Use:   "use NAME",
		Short: "choose the engine bundle that models run on",
		Args:  args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, argv []string) error {
			cfg, err := a.config(cmd)
			if err != nil {
				return err
			}
			was := cfg.Engine.Bundle
			cfg.Engine.Bundle = argv[0]
			b, err := a.bundle(cfg)
			if err != nil {
				return err
			}
			if err := b.Check(); err != nil {
				return err
			}
			if err := os.MkdirAll(cfg.Dirs.State, 0o755); err != nil {
				return err
			}
			if err := renameio.WriteFile(chosenFile(cfg), []byte(b.Name+"\n"), 0o644); err != nil {
				return err
			}
			a.printf("models loaded from now on run on %s (llama.cpp %s)\n", b.Name, b.LlamaVersion)
			if was != "" {
				a.notef("hearth: the setting engine.bundle says %s and wins over this choice\n", was)
			}
			return nil
		},
	}
	configs.AddFlags(c.Flags(), "engine.dir")
	return c
}

func (a *app) engineInfoCmd() *cobra.Command {
	c := a.jsonFlag(&cobra.Command{
		Use:   "info [NAME]",
		Short: "show what an engine bundle holds, and check that it is whole",
		Args:  args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, argv []string) error {
			cfg, err := a.config(cmd)
			if err != nil {
				return err
			}
			if len(argv) > 0 {
				cfg.Engine.Bundle = argv[0]
			}
			b, err := a.bundle(cfg)
			if err != nil {
				return err
			}
			if a.json {
				return errors.Join(a.printJSON(struct {
					Dir string `json:"dir"`
					bundle.Manifest
				}{b.Dir, b.Manifest}), b.Check())
			}
			rows := [][]string{
				{"Name", b.Name}, {"Folder", b.Dir}, {"llama.cpp", b.LlamaVersion}, {"ggml", b.GGMLVersion}, {"Source", string(b.Source)},
				{"Backends", strings.Join(backendsOf(b), " ")}, {"GPU targets", dash(strings.Join(b.GFXTargets, " "))},
				{"Packages", fmt.Sprint(len(b.Packages))},
			}
			if b.GFXNote != "" {
				rows = append(rows, []string{"", b.GFXNote})
			}
			table(a.out, rows)
			return b.Check()
		},
	})
	configs.AddFlags(c.Flags(), "engine.")
	return c
}
