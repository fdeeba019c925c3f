package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"hearth/configs"
)

func (a *app) configCmd() *cobra.Command {
	c := &cobra.Command{
		Use:   "config",
		Short: "show and start the configuration",
		Args:  args(cobra.NoArgs),
	}
	c.AddCommand(a.configShowCmd(), a.configPathCmd(), a.configInitCmd(), a.configSchemaCmd())
	return c
}

func (a *app) configShowCmd() *cobra.Command {
	c := a.jsonFlag(&cobra.Command{
		Use:   "show",
		Short: "list every setting, its value, and where that is from",
		Args:  args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := a.config(cmd)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(map[string]any{"settings": cfg.Values()})
			}
			rows := [][]string{{"SETTING", "VALUE", "FROM"}}
			for _, v := range cfg.Values() {
				rows = append(rows, []string{v.Key, dash(fmt.Sprint(v.Value)), v.From})
			}
			table(a.out, rows)
			return nil
		},
	})
	configs.AddFlags(c.Flags(), "listen", "pool.", "engine.", "run.", "hub.")
	return c
}

func (a *app) configPathCmd() *cobra.Command {
	return a.jsonFlag(&cobra.Command{
		Use:   "path",
		Short: "print the path of the configuration file in use, or where it would be",
		Args:  args(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			p, err := configs.FilePath(configs.Options{Env: a.env, File: a.configFile})
			if err != nil {
				return err
			}
			exists := p != ""
			if !exists {
				p = configs.DefaultFile(a.env)
			}
			if a.json {
				return a.printJSON(map[string]any{"path": p, "exists": exists})
			}
			a.printf("%s\n", p)
			return nil
		},
	})
}

func (a *app) configInitCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "init",
		Short: "write a configuration file with every setting commented out",
		Args:  args(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			p := a.configFile
			if p == "" {
				p = configs.DefaultFile(a.env)
			}
			if p == "" {
				return &hintedError{errors.New("there is no home folder"), "name a file with --config", exitUsage}
			}
			if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
				return err
			}
			// It may get keys and tokens, so nobody else should read it.
			f, err := os.OpenFile(p, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
			if errors.Is(err, os.ErrExist) {
				return &hintedError{fmt.Errorf("%s exists already", p), "hearth config show says what it sets", exitFailed}
			}
			if err != nil {
				return err
			}
			_, err = f.WriteString(configs.Example())
			if err = errors.Join(err, f.Close()); err != nil {
				return err
			}
			a.printf("wrote %s\n", p)
			return nil
		},
	}
}

func (a *app) configSchemaCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "print the JSON schema of the configuration file",
		Args:  args(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			b, err := configs.Schema()
			if err != nil {
				return err
			}
			_, err = a.out.Write(b)
			return err
		},
	}
}
