package main

import (
	"time"

	"github.com/spf13/cobra"

	"hearth/models"
	"hearth/models/gguf"
)

// listed is one model in `hearth list --json`.
type listed struct {
	Name    string       `json:"name"`
	Aliases []string     `json:"aliases,omitempty"`
	ID      string       `json:"id,omitempty"`
	Size    int64        `json:"size"`
	Source  string       `json:"source"`
	Path    string       `json:"path"`
	Added   time.Time    `json:"added"`
	Summary gguf.Summary `json:"summary"`
}

func toListed(e models.Entry) listed {
	return listed{e.Name, e.Aliases, e.ID(), e.Size(), e.Source, e.Path(), e.Added, e.Summary}
}

func (a *app) listCmd() *cobra.Command {
	var quiet bool
	c := a.jsonFlag(&cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "list the models that are here",
		Args:    args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := a.config(cmd)
			if err != nil {
				return err
			}
			store, err := a.store(cfg)
			if err != nil {
				return err
			}
			all, problems, err := store.List()
			if err != nil {
				return err
			}
			for _, p := range problems {
				a.notef("hearth: ignoring %v\n", p.Err)
			}
			return a.printModels(all, quiet)
		},
	})
	c.Flags().BoolVarP(&quiet, "quiet", "q", false, "print names only")
	return c
}

func (a *app) printModels(all []models.Entry, quiet bool) error {
	if a.json {
		out := struct {
			Models []listed `json:"models"`
		}{make([]listed, 0, len(all))}
		for _, e := range all {
			out.Models = append(out.Models, toListed(e))
		}
		return a.printJSON(out)
	}
	if quiet {
		for _, e := range all {
			a.printf("%s\n", e.Name)
		}
		return nil
	}
	rows := [][]string{{"NAME", "ID", "SIZE", "PARAMS", "QUANT", "KIND", "MODIFIED"}}
	for _, e := range all {
		rows = append(rows, []string{
			e.Name, dash(e.ID()), size(e.Size()), count(e.Summary.Parameters), dash(e.Summary.Quantization),
			string(e.Summary.Kind), ago(a.now(), e.Added),
		})
	}
	table(a.out, rows)
	return nil
}
